"""Laws 4 to 7 across processes on this machine, compared with one process and with NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from terngrad.planes import GROUP, SUM_BLOCK
from terngrad.testing.addresses import free_addresses
from terngrad.testing.certificates import make_certificates
from terngrad.testing.conformance import (
    POLICIES,
    SHAPES,
    STEPS,
    delivered,
    gradients_of,
    parameter_servers,
)
from terngrad.testing.processes import mpirun
from terngrad.testing.selection import sample

_PLANES_UP, _PLANES_DOWN = 5, 5  # most planes of sums over a process' nodes and over all 4


def _codes_sums(policy):
    return POLICIES[policy].sum_codec != "exact"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The results of one process with 4 nodes."""
    (found,) = delivered("local", 1, "-", tmp_path_factory.mktemp("local"))
    return found


@pytest.fixture(
    scope="module",
    params=[
        ("sockets", 4),
        ("sockets over TLS", 2),  # two processes of the mesh, and two workers of a ps, exchange
        ("1 ps", 2),  # in another way
        ("2 ps", 4),
        ("mpi", 2),
        *sample([("sockets", 1), ("sockets", 2), ("sockets over TLS", 4), ("1 ps", 1), ("mpi", 4)]),
        *sample([("horovodrun", 2), ("horovodrun", 4), ("horovod by mpirun", 2)]),
    ],
    ids=str,
)
def together(request, tmp_path_factory, horovod_command):
    """The results of each of several processes, with 4 nodes in all."""
    kind, count = request.param
    folder = tmp_path_factory.mktemp(kind.replace(" ", "_"))
    if kind == "mpi":
        return delivered("mpi", count, "-", folder, launcher=mpirun(count))
    if "horovod" in kind:
        launcher = horovod_command(kind.split()[-1], count)
        return delivered("horovod", count, "-", folder, launcher=launcher)
    if kind.endswith(" ps"):
        with parameter_servers(int(kind.split()[0]), count) as hosts:
            return delivered("parameter_server", count, hosts, folder)
    hosts = ",".join(free_addresses(count))
    if kind == "sockets over TLS":
        tls = make_certificates(folder, "authority", "all")
        return delivered("sockets", count, f"{hosts}/{tls.ca},{tls.cert},{tls.key}", folder)
    return delivered(kind, count, hosts, folder)


@pytest.mark.slow
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_law_4_every_process_delivers_what_one_process_does(alone, together, policy):
    for found in together:
        for i in range(len(SHAPES)):
            got, expected = found[f"{policy} {i}"], alone[f"{policy} {i}"]
            if policy == "half":  # a process adds its own nodes before it rounds
                np.testing.assert_allclose(got, expected, rtol=2e-3, atol=1e-3)
            else:
                np.testing.assert_array_equal(got, expected)


@pytest.mark.slow
def test_law_4_every_node_keeps_what_it_keeps_in_one_process(alone, together):
    memories = sorted(key for key in alone if "memory/" in key)
    assert sorted(key for found in together for key in found if "memory/" in key) == memories
    for found in together:
        for key in found.keys() & set(memories):
            np.testing.assert_array_equal(found[key], alone[key])


def _kept_sums(found, policy):
    """Returns what the owners of shares keep together, by variable."""
    pieces = {}
    for each in found:
        for key in (key for key in each if key.startswith(f"{policy} kept_sums/")):
            _, variable, first = key.split("/")
            pieces.setdefault(int(variable), []).append((int(first), each[key]))
    return {i: np.concatenate([values for _, values in sorted(p)]) for i, p in pieces.items()}


@pytest.mark.slow
@pytest.mark.parametrize("policy", [name for name in sorted(POLICIES) if _codes_sums(name)])
def test_law_4_the_owners_of_shares_keep_what_one_owner_keeps(alone, together, policy):
    kept, expected = _kept_sums(together, policy), _kept_sums([alone], policy)
    assert kept.keys() == expected.keys() and expected
    for i, values in expected.items():
        np.testing.assert_array_equal(kept[i], values)


@pytest.fixture(scope="module", name="gradients")
def _gradients():
    """The nodes' gradients of the last step, by variable: float64 [4, ...]."""
    last = tf.constant(STEPS - 1, tf.int64)
    by_node = [[g.numpy().astype(np.float64) for g in gradients_of(n, last)] for n in range(4)]
    return [np.stack(each) for each in zip(*by_node, strict=True)]


@pytest.mark.slow
def test_law_5_the_mean_is_the_scale_over_the_nodes_times_an_integer(together, gradients):
    several = [i for i, shape in enumerate(SHAPES) if np.prod(shape) > 1]  # values to clip
    for found in together:
        for i in several:
            scale = max(
                min(np.abs(g).max(), POLICIES["ternary"].clip_factor * g.std())
                for g in gradients[i]
            )
            integers = found[f"ternary {i}"] * 4 / scale
            np.testing.assert_allclose(integers, np.round(integers), atol=1e-4)
            assert np.abs(integers).max() <= 4.0001
            assert len(np.unique(np.round(integers))) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "error"), [("float", 1e-6), ("half", 3e-3)])
def test_law_6_float_codecs_deliver_the_mean_of_all_nodes(together, gradients, policy, error):
    for found in together:
        for i, each in enumerate(gradients):
            np.testing.assert_allclose(found[f"{policy} {i}"], each.mean(axis=0), atol=error)


@pytest.mark.slow
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_law_7_the_bytes_reported_are_the_bytes_sent(together, policy, request):
    processes = len(together)
    for found in together:
        sent, payload = found[f"{policy} bytes"], found[f"{policy} payload"]
        kind = request.node.callspec.params["together"][0]
        if processes == 1 and kind == "sockets":
            assert sent == payload == 0
        # Shares are whole groups of 32 values: each process may pad a bucket by one group.
        # Shares of sums that are coded again are whole blocks.
        groups = SUM_BLOCK // GROUP if _codes_sums(policy) else 1
        padding = 4 * groups * processes * (_PLANES_UP + _PLANES_DOWN) * found[f"{policy} buckets"]
        # The mesh sends no padding: the last shares are smaller than the others.
        less = padding if "sockets" in kind else 1
        if found[f"{policy} packs"]:
            less = payload  # it is the most
        assert payload - less <= sent <= payload + padding
