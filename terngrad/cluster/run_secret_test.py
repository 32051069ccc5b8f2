"""The secret of a training: where it comes from, and what shows it."""

import pytest

from terngrad.cluster import run_secret


def test_a_launcher_draws_another_secret_for_each_run_unless_the_user_has_one():
    drawn = {run_secret.of_run({}) for _ in range(3)}
    assert len(drawn) == 3
    assert {len(secret) for secret in drawn} == {32}
    assert run_secret.of_run({"TERNGRAD_SECRET": "my own and longer "}) == "my own and longer "


def test_law_10_a_secret_that_could_be_guessed_is_refused():
    assert run_secret.shared({}) == b""
    assert run_secret.shared({"TERNGRAD_SECRET": "0123456789abcdef"}) == b"0123456789abcdef"
    with pytest.raises(ValueError, match="TERNGRAD_SECRET has 5 characters; allowed are 16 and"):
        run_secret.shared({"TERNGRAD_SECRET": "short"})


@pytest.mark.parametrize("wrong", ["\n", "\r", "\t", "ü", "\udcff"])
@pytest.mark.parametrize("read", [run_secret.shared, run_secret.of_run])
def test_law_10_a_secret_that_does_not_travel_as_a_line_is_refused(read, wrong):
    for secret in (f"0123456789abcdef{wrong}", f"{wrong}0123456789abcdef"):
        with pytest.raises(ValueError, match="TERNGRAD_SECRET has line ends, or characters"):
            read({"TERNGRAD_SECRET": secret})


def test_a_proof_is_of_one_speaker_secret_and_nonce():
    given = run_secret.proof(b"secret", "ps 0", b"nonce")
    assert run_secret.is_proof(given, b"secret", "ps 0", b"nonce")
    for secret, speaker, nonce in (
        (b"other", "ps 0", b"nonce"),
        (b"secret", "ps 1", b"nonce"),
        (b"secret", "ps 0", b"other"),
    ):
        assert not run_secret.is_proof(given, secret, speaker, nonce)
