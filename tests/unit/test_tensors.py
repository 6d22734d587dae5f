"""What tensors and arrays keep on the way through a message."""

import subprocess
import sys
from pickle import PickleBuffer

import numpy as np
import pytest

from roost.actors.wire import tensors
from roost.actors.wire.pickling import Packed, pack, unpack

torch = pytest.importorskip("torch")


def send(obj: object) -> tuple[object, Packed]:
    """Through the copy that a link makes: what arrives shares nothing with what was sent."""
    packed = pack(obj)
    return unpack(packed.data, [memoryview(bytearray(buffer)) for buffer in packed.buffers]), packed


def spans(packed: Packed) -> list[int]:
    """The bytes of each storage sent (each goes with the 8 bytes of its place)."""
    return [buffer.nbytes for buffer in packed.buffers[1::2]]


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.complex128, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_arrives_with_its_bytes(dtype):
    sent = torch.arange(24).remainder(2).to(dtype).reshape(4, 6)
    got, packed = send(sent)
    assert (got.dtype, got.shape, got.stride()) == (dtype, sent.shape, sent.stride())
    assert bytes(got.untyped_storage()) == bytes(sent.untyped_storage())
    assert spans(packed) == [24 * sent.element_size()]


LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t(),
    "permuted": lambda t: t.reshape(2, 3, 10, 10).permute(2, 0, 3, 1),
    "strided": lambda t: t[::2, 1::3],
    "a row": lambda t: t[3],
    "a column": lambda t: t[:, 5],
    "expanded": lambda t: t[:1].expand(7, 30),
    "zero-dim": lambda t: t[2, 2],
    "zero-size": lambda t: t[:0],
    "zero-size with strides": lambda t: t.t()[:, 3:3],
    "channels last": lambda t: t.reshape(1, 2, 15, 20).contiguous(memory_format=torch.channels_last),
    "overlapping": lambda t: t.flatten().unfold(0, 4, 2),
    "conjugate": lambda t: torch.complex(t, t).conj(),
    "negative": lambda t: torch.complex(t, t).conj().imag,
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_keeps_its_values_shape_and_strides(name):
    sent = LAYOUTS[name](torch.arange(600.0).reshape(20, 30))
    got, _ = send(sent)
    assert torch.equal(got, sent)
    assert (got.shape, got.stride(), got.is_conj(), got.is_neg()) == (
        sent.shape,
        sent.stride(),
        sent.is_conj(),
        sent.is_neg(),
    )


def test_what_arrives_is_writable_and_apart_from_what_was_sent():
    sent = torch.zeros(8)
    got, _ = send(sent)
    got += 1
    assert sent.sum() == 0 and got.sum() == 8


def test_a_tensor_over_read_only_or_unaligned_buffers_is_copied_and_still_writable():
    sent = torch.arange(9.0)
    packed = pack(sent)
    read_only = [memoryview(bytes(buffer)) for buffer in packed.buffers]
    unaligned = [memoryview(bytearray(b"\0" * 3 + bytes(buffer)))[3:] for buffer in packed.buffers]
    for buffers in (read_only, unaligned):
        got = unpack(packed.data, buffers)
        got += 1
        assert torch.equal(got, sent + 1) and got.data_ptr() % tensors.ALIGNMENT == 0


def test_a_tensor_arrives_over_its_buffer_without_a_copy():
    packed = pack(torch.zeros(64))
    buffers = [memoryview(bytearray(buffer)) for buffer in packed.buffers]
    got = unpack(packed.data, buffers)
    got.fill_(1)
    assert np.frombuffer(buffers[1], np.float32).sum() == 64


def test_views_of_one_storage_stay_views_of_one_storage_and_are_sent_once():
    base = torch.arange(1000.0)
    (whole, head, tail), packed = send([base, base[:10], base.reshape(10, 100)[-1]])
    assert spans(packed) == [4000]
    whole[0], tail[-1] = -1, -2
    assert head[0] == -1 and whole[-1] == -2


def test_one_tensor_sent_twice_is_one_tensor():
    shared = torch.zeros(3)
    (a, b), _ = send([shared, shared])
    assert a is b


def test_of_a_large_storage_only_the_span_in_use_is_sent():
    base = torch.arange(1_000_000.0)
    (a, b), packed = send([base[500:510], base[540:550]])
    assert spans(packed)[0] <= 50 * 4 + tensors.ALIGNMENT
    assert torch.equal(a, base[500:510]) and torch.equal(b, base[540:550])
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_a_span_grows_for_views_met_later_in_the_message_and_in_other_dtypes():
    base = torch.arange(100, dtype=torch.int64)
    sent = [base[50:51], base.view(torch.int16)[7:9], base.view(torch.uint8)[799:]]
    got, packed = send(sent)
    assert all(torch.equal(a, b) for a, b in zip(got, sent, strict=True))
    assert spans(packed) == [800]


def test_requires_grad_is_kept_and_what_arrives_is_a_leaf():
    leaf = torch.ones(3, requires_grad=True)
    (got, product, plain), _ = send([leaf, leaf * 2, leaf.detach()])
    assert got.requires_grad and got.is_leaf and product.requires_grad and product.is_leaf
    assert not plain.requires_grad
    assert got.untyped_storage().data_ptr() == plain.untyped_storage().data_ptr()


def test_a_module_keeps_its_parameters_buffers_and_tied_weights():
    sent = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
    sent[2].weight = sent[0].weight
    sent[0].bias.requires_grad_(False)
    got, _ = send(sent)
    assert got[2].weight is got[0].weight and type(got[0].weight) is torch.nn.Parameter
    assert not got[0].bias.requires_grad
    for name, value in sent.state_dict().items():
        assert torch.equal(got.state_dict()[name], value)


class Tagged(torch.Tensor):
    pass


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")  # torch's own, of quantized tensors
def test_what_torch_reduces_itself_arrives_by_torchs_way():
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 1, torch.quint8)
    sparse = torch.eye(3).to_sparse()
    attributed = torch.ones(2)
    attributed.note = "mine"
    got, _ = send([torch.ones(2).as_subclass(Tagged), sparse, quantized, torch.empty(3, device="meta"), attributed])
    assert type(got[0]) is Tagged and got[0].sum() == 2
    assert got[1].is_sparse and torch.equal(got[1].to_dense(), torch.eye(3))
    assert got[2].is_quantized and torch.equal(got[2].dequantize(), quantized.dequantize())
    assert got[3].is_meta and got[3].shape == (3,)
    assert got[4].note == "mine"


def test_a_subclass_sends_its_memory_out_of_band_and_shares_it_with_plain_views():
    base = torch.zeros(100_000)
    (tagged, plain), packed = send([base.as_subclass(Tagged), base[5:6]])
    assert len(packed.data) < 2000 and spans(packed) == [400_000]
    tagged[5] = 3
    assert plain[0] == 3


def test_a_storage_itself_can_be_sent():
    sent = torch.arange(5.0)
    (storage, view), _ = send([sent.untyped_storage(), sent])
    assert bytes(storage) == bytes(sent.untyped_storage())
    assert storage.data_ptr() == view.untyped_storage().data_ptr()


def test_a_tensor_of_a_device_not_here_arrives_on_the_cpu():
    assert tensors._nearest("cuda:3").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_a_tensor_of_another_device_is_staged_by_the_span_in_use(monkeypatch):
    """With the CPU in the other device's place, for this needs none."""
    monkeypatch.setattr(tensors, "_on_cpu", lambda device: False)
    monkeypatch.setattr(tensors, "STAGED", ("cpu",))
    base = torch.arange(1000.0)
    (a, b), packed = send([base[100:110], base[104:120]])
    assert spans(packed) == [20 * 4]
    assert torch.equal(b, base[104:120])
    a[4] = -1
    assert b[0] == -1


NUMPY_DTYPES = ["f8", "f4", "f2", "c16", "?", "u1", "i8", ">i4", "M8[ns]", "m8[s]", "S5", "U3", "i4,f8", "V3"]


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_every_numpy_dtype_arrives(dtype):
    sent = np.arange(12).astype("u1").repeat(40)[: 12 * np.dtype(dtype).itemsize].view(dtype).reshape(3, 4)
    got, packed = send(sent)
    assert (got.dtype, got.shape, got.strides) == (sent.dtype, sent.shape, sent.strides)
    assert got.tobytes() == sent.tobytes()
    assert spans(packed) == [sent.nbytes]


NUMPY_LAYOUTS = {
    "contiguous": lambda a: a,
    "fortran": np.asfortranarray,
    "transposed": lambda a: a.T,
    "strided": lambda a: a[::2, 1::3],
    "reversed": lambda a: a[::-1],
    "reversed in part": lambda a: a[3:9, ::-2],
    "broadcast": lambda a: np.broadcast_to(a[0], (5, 30)),
    "zero-dim": lambda a: a[1, 1:2].reshape(()),
    "zero-size": lambda a: a[:0],
    "read-only": lambda a: np.frombuffer(a.tobytes()),
    "windows": lambda a: np.lib.stride_tricks.sliding_window_view(a[0], 4),
}


@pytest.mark.parametrize("name", NUMPY_LAYOUTS)
def test_every_numpy_layout_keeps_its_values_shape_and_strides(name):
    sent = NUMPY_LAYOUTS[name](np.arange(600.0).reshape(20, 30))
    got, _ = send(sent)
    assert np.array_equal(got, sent)
    assert got.shape == sent.shape and (got.strides == sent.strides or sent.size == 0)
    assert got.flags.writeable and got.flags.aligned


def test_numpy_views_of_one_array_stay_views_of_one_array():
    base = np.arange(1000.0)
    (a, b, c), packed = send([base[10:20], base[30:10:-1], base[15]])
    assert spans(packed) == [21 * 8] and c == 15
    a[9] = -1  # base[19]
    assert b[11] == -1


def test_arrays_of_objects_arrive_with_what_they_hold():
    inner = np.arange(3)
    got, _ = send(np.array([{"a": inner}, None, "text"], dtype=object))
    assert np.array_equal(got[0]["a"], inner) and got[1] is None and got[2] == "text"


def test_numpy_subclasses_and_scalars_arrive_by_numpys_way():
    got, _ = send([np.ma.masked_array([1, 2], [True, False]), np.float32(2.5), np.dtype("f4")])
    assert got[0].mask.tolist() == [True, False] and got[1] == np.float32(2.5)
    assert got[2] == np.dtype("f4")


def test_a_buffer_of_another_library_goes_out_of_band():
    class Columns:
        def __init__(self, data):
            self.data = data

        def __reduce__(self):
            return bytearray, (PickleBuffer(self.data),)

    got, packed = send(Columns(bytearray(b"abc")))
    assert got == b"abc" and [buffer.nbytes for buffer in packed.buffers] == [3]


def test_buffers_keep_the_senders_memory_alive():
    packed = pack([torch.full((1000,), 7.0), np.full(1000, 7.0)])
    churn = [torch.zeros(1000) for _ in range(50)]
    assert all(set(np.frombuffer(buffer, dtype).tolist()) == {7.0}
               for buffer, dtype in zip(packed.buffers[1::2], ("f4", "f8"), strict=True))  # fmt: skip
    del churn


@pytest.mark.parametrize("hidden", ["torch", "numpy"])
def test_neither_library_is_needed_or_imported(hidden):
    script = f"""
import sys
sys.modules[{hidden!r}] = None
from roost.actors.wire.pickling import pack, unpack
class Thing: pass
packed = pack([Thing(), bytearray(5)])
assert unpack(packed.data, packed.buffers)[1] == bytearray(5)
assert not any(sys.modules.get(name) for name in ("torch", "numpy"))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_tensors_are_sent_without_numpy():
    script = """
import sys
sys.modules["numpy"] = None
import warnings; warnings.simplefilter("ignore")
import torch
from roost.actors.wire.pickling import pack, unpack
packed = pack(torch.arange(5.0)[2:])
got = unpack(packed.data, [memoryview(bytearray(b)) for b in packed.buffers])
assert got.tolist() == [2.0, 3.0, 4.0]
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
