"""For whom a certificate is valid, and which are revoked."""

import builtins

import pytest

from terngrad.connect.certificates import Certificate, RevokedCertificates


@pytest.mark.parametrize(
    ("name", "host", "fits"),
    [
        ("host-a", "host-a", True),
        ("Host-A.example.org", "host-a.EXAMPLE.org.", True),
        ("host-a", "host-ab", False),
        ("192.0.2.7", "192.0.2.7", True),
        ("192.0.2.7", "192.0.2.70", False),
        ("2001:db8::1", "2001:DB8:0::1", True),
        ("*.example.org", "a.example.org", True),
        ("*.example.org", "a.b.example.org", False),
        ("*.example.org", "example.org", False),
        ("*.", "a", False),
        ("*", "a", False),
        ("*.0.2.7", "192.0.2.7", False),
    ],
)
def test_a_certificate_is_for_the_hosts_that_it_names(name, host, fits):
    assert Certificate(["another", name], 1).is_for(host) == fits


def test_a_file_of_revoked_certificates_that_could_not_be_read_is_read_again(tmp_path, monkeypatch):
    path = tmp_path / "denied.txt"
    path.write_text("# nobody\n")
    revoked = RevokedCertificates(str(path))
    path.write_text("0A:ff  # host-a\nserial=0B\n")

    def fail(*arguments, **settings):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "open", fail)
        with pytest.raises(PermissionError):
            revoked.refresh()
    assert 0x0AFF not in revoked
    assert revoked.refresh() and not revoked.refresh()
    assert 0x0AFF in revoked and 0x0B in revoked
    path.unlink()
    with pytest.raises(FileNotFoundError):
        revoked.refresh()
    assert 0x0B in revoked
