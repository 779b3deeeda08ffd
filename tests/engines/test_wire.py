"""The wire: honest messages come back as they were, anything else is a WireError, and cheap."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Annotated, Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

import fedmend.methods
from fedmend.engines import endpoint, wire
from fedmend.engines.endpoint import SiloEndpoint, steps_of
from fedmend.engines.wire import decode, encode
from fedmend.errors import WireError
from fedmend.federation import (
    MESSAGES,
    OUR_PREFIXES,
    Nothing,
    field_rules,
    message,
    step_types,
    wire_name,
)
from fedmend.methods import METHODS
from fedmend.privacy.ledger import Kind
from tests.tiny import plain_graph

for _found in pkgutil.iter_modules(fedmend.methods.__path__):
    importlib.import_module(f"fedmend.methods.{_found.name}")  # registers its messages


@message("test_wire.Everything")
class Everything:
    """A field of every type that a message may have."""

    tensor: Annotated[Tensor, Kind.EMBEDDINGS]
    named: Annotated[dict[str, Tensor], Kind.WEIGHTS]
    flag: Annotated[bool, Kind.CONTROL]
    whole: Annotated[int, Kind.COUNTS]
    real: Annotated[float, Kind.METRICS]
    text: Annotated[str, Kind.CONTROL]
    figures: Annotated[dict[str, float], Kind.METRICS]


VALUES: dict[str, Any] = {
    "tensor": torch.arange(6.0).view(2, 3),
    "named": {"a": torch.tensor([True, False]), "b/c": torch.tensor(7)},
    "flag": True,
    "whole": 3,
    "real": 0.5,
    "text": "Grüße",
    "figures": {"x": 1.5},
}


def everything(**changes: Any) -> Everything:
    return Everything(**{**VALUES, **changes})


def same(sent: Any, received: Any) -> bool:
    """Whether what was sent arrived: type, shape and every bit, NaN included."""
    if isinstance(sent, Tensor):
        return (
            (sent.shape, sent.dtype) == (received.shape, received.dtype)
            and received.is_contiguous()
            and torch.equal(bits(sent), bits(received))
        )
    if isinstance(sent, dict):
        return sent.keys() == received.keys() and all(
            same(sent[key], received[key]) for key in sent
        )
    if dataclasses.is_dataclass(sent):
        names = [field.name for field in dataclasses.fields(sent)]
        return all(same(getattr(sent, name), getattr(received, name)) for name in names)
    return type(sent) is type(received) and bool(sent == received)


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


# Honest messages

DTYPES = list(wire._DTYPES.values())
shapes = st.lists(st.integers(0, 4), max_size=4)


@st.composite
def tensors(draw: Callable[..., Any]) -> Tensor:
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(shapes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    numbers = torch.randint(-100, 100, shape, generator=generator)
    return (numbers > 0) if dtype is torch.bool else numbers.to(dtype)


finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=8)
fields: dict[Any, st.SearchStrategy[Any]] = {
    Tensor: tensors(),
    dict[str, Tensor]: st.dictionaries(texts, tensors(), max_size=3),
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: finite,
    str: st.text(st.characters(codec=None), max_size=8),
    dict[str, float]: st.dictionaries(texts, finite, max_size=3),
}


TESTED = sorted(MESSAGES)


def messages_of(name: str) -> st.SearchStrategy[Any]:
    """Messages of this name, with anything in their fields."""
    kind = MESSAGES[name]
    rules = field_rules(kind)
    return st.builds(kind, **{field: fields[rule.type] for field, rule in rules.items()})


def test_whatever_passes_is_among_the_messages_tested() -> None:
    silos = {method.silo_type for method in METHODS.values()}
    steps = [step for silo in silos for step in steps_of(silo).values()]
    steps += [getattr(SiloEndpoint, name) for name in endpoint._STEPS]
    assert len(steps) > 50
    passing = {wire_name(each) for step in steps for each in step_types(step)}
    assert passing <= set(TESTED)


@pytest.mark.parametrize("name", TESTED)
@settings(max_examples=20)
@given(draw=st.data())
def test_round_trip(name: str, draw: st.DataObject) -> None:
    sent = draw.draw(messages_of(name))
    encoded = encode(sent)
    received = decode(encoded.data, allowed=(type(sent),))
    assert type(received) is type(sent)
    assert same(sent, received)
    assert MESSAGES[encoded.name] is type(sent)
    assert sum(encoded.sizes.values()) == len(encoded.data)
    assert min(encoded.sizes.values()) >= 0
    assert encode(received).data == encoded.data  # one message, one form


@given(st.dictionaries(texts, tensors(), max_size=5), st.text(max_size=8))
def test_written_as_safetensors_writes(named: dict[str, Tensor], text: str) -> None:
    """Our writer is quicker and no dialect: the same bytes as the library's own."""
    # The library's header is ordered by a hash where there are several entries of metadata only.
    assert wire._written(named, {"fedmend": text}) == save(named, metadata={"fedmend": text})


def test_plain_values_are_as_long_as_in_json() -> None:
    sizes = encode(everything(real=0.25, figures={"a": 1.5, "b": 2.0, "c": 3})).sizes
    assert sizes[Kind.METRICS] == len('{"a": 1.5, "b": 2.0, "c": 3.0}') + len("0.25")


def test_special_values_survive() -> None:
    odd = torch.tensor([torch.nan, torch.inf, -0.0, 1e-45])
    assert same(odd, decode(encode(everything(tensor=odd)).data).tensor)
    minus_zero = decode(encode(everything(real=-0.0)).data).real
    assert str(minus_zero) == "-0.0"
    third = decode(encode(everything(real=1 / 3, figures={"": 1e308})).data)
    assert (third.real, third.figures) == (1 / 3, {"": 1e308})
    whole = decode(encode(everything(real=3)).data).real
    assert (whole, type(whole)) == (3.0, float)


def test_sizes_say_which_kind() -> None:
    encoded = encode(everything())
    assert encoded.sizes[Kind.EMBEDDINGS] == 24
    assert encoded.sizes[Kind.WEIGHTS] == 2 + 8
    assert encoded.sizes[Kind.COUNTS] == len("3")
    assert encoded.sizes[Kind.METRICS] == len("0.5") + len('{"x": 1.5}')
    assert sum(encoded.sizes.values()) == len(encoded.data)


def test_view_does_not_drag_its_storage_along() -> None:
    large = torch.arange(100_000.0).view(100, 1000)
    for view in (large[3], large[:, 7], large[::50, ::500], large[0, 0], large[5:5]):
        encoded = encode(everything(tensor=view, named={}))
        assert encoded.sizes[Kind.EMBEDDINGS] == view.numel() * 4
        assert len(encoded.data) < view.numel() * 4 + 1000
        assert same(view, decode(encoded.data).tensor)


@pytest.mark.parametrize(
    "odd",
    [
        torch.arange(6.0).view(2, 3).t(),
        torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1),
        torch.tensor([2.0]).expand(5),
        torch.ones(1, 3, 1, 2).to(memory_format=torch.channels_last),
        torch.zeros(0, 5),
        torch.tensor(1.5),
    ],
    ids=["transposed", "permuted", "expanded", "channels last", "empty", "scalar"],
)
def test_any_strides(odd: Tensor) -> None:
    assert same(odd, decode(encode(everything(tensor=odd)).data).tensor)


@pytest.mark.parametrize("items", [0, 1])
def test_few_items_without_a_stride(items: int) -> None:
    """As numpy hands empty arrays over: contiguous by torch's rules, yet no bytes to view."""
    odd = torch.full((1,), 7, dtype=torch.int64).as_strided((items,), (0,))
    found = decode(encode(everything(tensor=odd)).data).tensor
    assert found.dtype == torch.int64
    assert found.tolist() == [7] * items


def test_fields_may_share_a_tensor() -> None:
    shared = torch.arange(4.0)
    sent = everything(tensor=shared, named={"a": shared, "b": shared, "c": shared[1:], "d": shared})
    assert same(sent, decode(encode(sent).data))


def test_parameters_are_sent_without_their_gradient() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    received = decode(encode(everything(tensor=parameter)).data).tensor
    assert not received.requires_grad


def test_received_tensors_are_writable_and_nobody_elses() -> None:
    sent = everything(tensor=torch.zeros(3), named={"a": torch.zeros(2)})
    data = encode(sent).data
    before = bytes(data)
    one, other = decode(data), decode(data)
    one.tensor.add_(1.0)
    one.named["a"].add_(1.0)
    assert data == before
    for untouched in (sent, other):
        assert not untouched.tensor.any()
        assert not untouched.named["a"].any()


# What may not be sent


class NotAMessage:
    tensor = torch.zeros(1)


@dataclasses.dataclass(frozen=True)
class Impostor(Everything):
    """A subclass that is not itself a message, with a field more."""

    secret: int = 0


@pytest.mark.parametrize("thing", [NotAMessage(), "text", None, 7, {"type": "x"}, Everything])
def test_only_messages_are_sent(thing: Any) -> None:
    with pytest.raises(WireError, match="not a message"):
        encode(thing)


def test_subclass_of_a_message_is_no_message() -> None:
    with pytest.raises(WireError, match="not a message"):
        encode(Impostor(**VALUES, secret=1))


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("tensor", [1.0], "must be a tensor, got list"),
        ("tensor", None, "must be a tensor"),
        ("tensor", torch.eye(2).to_sparse_csr(), "is sparse"),
        ("tensor", torch.eye(2).to_sparse(), "is sparse"),
        ("tensor", torch.zeros(1, dtype=torch.complex64), "complex64, which messages do not"),
        ("named", torch.zeros(1), "must be a dict of tensors"),
        ("named", {"a": 1.0}, "must be a tensor, got float"),
        ("named", {1: torch.zeros(1)}, "key that is not a text"),
        ("named", {"\ud800": torch.zeros(1)}, "key that is not a text"),
        ("flag", 1, "holds int, declared is"),
        ("whole", True, "holds bool"),
        ("whole", 1.0, "holds float"),
        ("whole", 2**63, "holds int"),
        ("real", float("nan"), "NaN or infinite"),
        ("real", float("-inf"), "NaN or infinite"),
        ("real", 10**400, "NaN or infinite"),
        ("real", True, "holds bool"),
        ("real", "0.5", "holds str"),
        ("text", b"x", "holds bytes"),
        ("figures", {"x": float("nan")}, "NaN or infinite"),
        ("figures", {"x": 10**400}, "NaN or infinite"),
        ("figures", {1: 1.0}, "holds dict"),
        ("figures", {"x": True}, "holds dict"),
        ("figures", [1.0], "holds list"),
        ("text", "x" * wire.HEADER_LIMIT, "more names and plain values"),
    ],
)
def test_wrong_values_are_not_sent(field: str, value: Any, text: str) -> None:
    with pytest.raises(WireError, match=text) as caught:
        encode(everything(**{field: value}))
    assert "Everything" in str(caught.value)


def test_graph_cannot_be_smuggled_out() -> None:
    graph = plain_graph(3, [(0, 1)])
    for field in VALUES:
        with pytest.raises(WireError):
            encode(everything(**{field: graph}))


def test_messages_declare_what_they_carry() -> None:
    with pytest.raises(TypeError, match=r"Silent\.x must say what it carries"):

        @message("test_wire.Silent")
        class Silent:
            x: Tensor

    with pytest.raises(TypeError, match=r"Two\.x must say what it carries"):

        @message("test_wire.Two")
        class Two:
            x: Annotated[int, Kind.COUNTS, Kind.METRICS]

    with pytest.raises(TypeError, match="cannot carry"):

        @message("test_wire.Listing")
        class Listing:
            x: Annotated[list[int], Kind.COUNTS]


# Hostile bytes

GOOD = encode(everything()).data
OTHERS = [GOOD, encode(Nothing()).data, encode(everything(named={})).data]


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def raw(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def with_ours(change: Callable[[dict[str, Any]], None]) -> bytes:
    """The good message with its own part of the header (type and plain fields) changed."""
    header, body = parts(GOOD)
    ours = json.loads(header["__metadata__"]["fedmend"])
    change(ours)
    header["__metadata__"]["fedmend"] = json.dumps(ours)
    return raw(header, body)


def with_header(change: Callable[[dict[str, Any]], None]) -> bytes:
    header, body = parts(GOOD)
    change(header)
    return raw(header, body)


def set_field(name: str, value: Any) -> bytes:
    return with_ours(lambda ours: ours["fields"].__setitem__(name, value))


def set_tensor(name: str, body: bytes = b"", **entry: Any) -> bytes:
    """The good message with this tensor alone, described by `entry`."""
    header, _ = parts(GOOD)
    described = {"dtype": "F32", "shape": [0], "data_offsets": [0, len(body)], **entry}
    return raw({"__metadata__": header["__metadata__"], name: described}, body)


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "seven bytes": b"\0" * 7,
    "empty header": raw(b""),
    "no header": (0).to_bytes(8, "little"),
    "cut off": GOOD[:-1],
    "one byte more": GOOD + b"\0",
    "header longer than all": (2**63).to_bytes(8, "little") + GOOD[8:],
    "header one too long": (len(GOOD) - 7).to_bytes(8, "little") + GOOD[8:],
    "no json": raw(b"\xff\xfe{"),
    "other json": raw([1, 2]),
    "utf-16": raw(json.dumps(parts(GOOD)[0]).encode("utf-16"), parts(GOOD)[1]),
    "no metadata": raw({}),
    "metadata of another kind": raw({"__metadata__": [1]}),
    "metadata without ours": raw({"__metadata__": {"x": "{}"}}),
    "more metadata": with_header(lambda h: h["__metadata__"].update(x="y")),
    "our part no json": raw({"__metadata__": {"fedmend": "{"}}),
    "our part a list": raw({"__metadata__": {"fedmend": "[]"}}),
    "our part a number": raw({"__metadata__": {"fedmend": 5}}),
    "deep nesting": raw(b"[" * 200_000),
    "deep nesting inside": raw({"__metadata__": {"fedmend": "[" * 200_000}}),
    "deep closed nesting": raw(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "unknown type": with_ours(lambda ours: ours.update(type="os.system")),
    "type of no text": with_ours(lambda ours: ours.update(type=["fedavg.Weights"])),
    "no type": with_ours(lambda ours: ours.pop("type")),
    "no fields": with_ours(lambda ours: ours.pop("fields")),
    "fields a list": with_ours(lambda ours: ours.update(fields=[])),
    "an entry more": with_ours(lambda ours: ours.update(more=1)),
    "undeclared field": set_field("secret", 1),
    "undeclared tensor": with_header(lambda h: h.update(secret=h.pop("tensor"))),
    "missing field": with_ours(lambda ours: ours["fields"].pop("whole")),
    "missing tensor": with_header(lambda h: h.pop("tensor")),
    "whole a text": set_field("whole", "3"),
    "whole true": set_field("whole", True),
    "whole too large": set_field("whole", 2**63),
    "whole endless": with_ours(lambda ours: ours["fields"].update(whole=10**4000)),
    "real NaN": set_field("real", float("nan")),
    "real infinite": set_field("real", float("inf")),
    "real endless": set_field("real", 10**400),
    "real null": set_field("real", None),
    "flag 1": set_field("flag", 1),
    "text a list": set_field("text", ["x"]),
    "figures nested": set_field("figures", {"x": {"y": 1.0}}),
    "figures endless": set_field("figures", {"x": 10**400}),
    "giant shape": set_tensor("tensor", shape=[2**40]),
    "giant shape of giant shapes": set_tensor("tensor", shape=[2**31, 2**31, 2**31]),
    "shape beyond 64 bits": set_tensor("tensor", shape=[2**64]),
    "giant empty shape": set_tensor("tensor", shape=[0, 2**62, 2**62]),
    "negative shape": set_tensor("tensor", b"\0" * 8, shape=[-1, -2]),
    "shape of no list": set_tensor("tensor", shape="9"),
    "many dimensions": set_tensor("tensor", b"\0" * 4, shape=[1] * 65),
    "very many dimensions": set_tensor("tensor", b"\0" * 4, shape=[1] * 100_000),
    "offsets beyond the end": set_tensor(
        "tensor", b"\0" * 8, shape=[2**20], data_offsets=[0, 2**22]
    ),
    "offsets far beyond": set_tensor("tensor", b"\0" * 8, shape=[2], data_offsets=[0, 2**63]),
    "offsets backwards": set_tensor("tensor", b"\0" * 8, shape=[2], data_offsets=[8, 0]),
    "shape and bytes differ": set_tensor("tensor", b"\0" * 8, shape=[3]),
    "unknown dtype": set_tensor("tensor", b"\0" * 8, shape=[2], dtype="F31"),
    "dtype we do not carry": set_tensor("tensor", b"\0" * 8, shape=[8], dtype="F8_E4M3"),
    "complex": set_tensor("tensor", b"\0" * 8, shape=[1], dtype="C64"),
    "truth of two": set_tensor("tensor", b"\2", shape=[1], dtype="BOOL"),
    "overlapping tensors": with_header(
        lambda h: h.update(tensor={**h["tensor"], "data_offsets": [0, 24]})
    ),
    "header above its limit": raw(b" " * (wire.HEADER_LIMIT + 1)),
    "many lists": raw(b"[" + b"[]," * (wire.HEADER_LIMIT // 3 - 2) + b"[]]"),
    "many keys": raw({"__metadata__": {"fedmend": json.dumps({str(n): n for n in range(80_000)})}}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused(name: str) -> None:
    with pytest.raises(WireError):
        decode(HOSTILE[name])


def test_helpers_make_messages_at_all() -> None:
    """The hostile cases differ from a good message only by what they are named for."""
    assert same(decode(with_ours(lambda ours: None)), everything())
    assert same(decode(with_header(lambda header: None)), everything())
    plain = set_tensor("tensor", b"\0" * 8, shape=[1] * 63 + [2])
    assert decode(plain).tensor.dim() == wire.MOST_DIMENSIONS
    assert decode(set_tensor("tensor", b"\1", shape=[1], dtype="BOOL")).tensor.tolist() == [True]


def test_repeated_json_keys_smuggle_nothing() -> None:
    """Two parsers read the header: whatever each makes of a repeated key, nothing slips through."""
    header, body = parts(GOOD)
    text = json.dumps(header)
    twice = "{" + f'"__metadata__":{json.dumps(header["__metadata__"])},' + text[1:]
    refused_or_message(raw(twice.encode(), body))
    entry = json.dumps({"dtype": "U8", "shape": [24], "data_offsets": [0, 24]})
    refused_or_message(raw(("{" + f'"tensor":{entry},' + text[1:]).encode(), body))


def test_limit_and_allowed_types() -> None:
    assert same(decode(GOOD, limit=len(GOOD)), everything())
    with pytest.raises(WireError, match=f"{len(GOOD)} bytes is above the limit of 10"):
        decode(GOOD, limit=10)
    with pytest.raises(WireError, match="Everything is not allowed here"):
        decode(GOOD, allowed=(Nothing,))
    with pytest.raises(WireError, match="not allowed"):
        decode(GOOD, allowed=())


def refused_or_message(data: bytes) -> None:
    """Decoding ends in a WireError or in a message whose every field is what it declares."""
    try:
        found = decode(data)
    except WireError:
        return
    assert MESSAGES[encode(found).name] is type(found)


@given(st.binary(max_size=300))
@example(b"\x02\0\0\0\0\0\0\0{}")
def test_any_bytes(data: bytes) -> None:
    refused_or_message(data)
    refused_or_message(raw(data))


@given(
    st.sampled_from(OTHERS),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(1, 255)), max_size=6),
    st.integers(0, 60),
    st.binary(max_size=5),
)
def test_damaged_messages(data: bytes, flips: list[tuple[int, int]], cut: int, more: bytes) -> None:
    damaged = bytearray(data)
    for at, by in flips:
        damaged[at % len(damaged)] ^= by
    refused_or_message(bytes(damaged[: len(damaged) - cut] if cut < 20 else damaged) + more)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([2**31, 2**32, 2**62, 2**63, 2**64, -1, 10**400])
    | st.sampled_from(["F32", "I64", "BOOL", "F4", "tensor", "named/a", "fedavg.Weights"])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, as the keys and indices that lead to it."""
    found = [path]
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            found += places(each, (*path, key))
    return found


HEADER, BODY = parts(GOOD)
OURS = json.loads(HEADER["__metadata__"]["fedmend"])


@given(st.sampled_from(places(HEADER)), json_values)
def test_headers_that_lie(path: tuple[Any, ...], value: Any) -> None:
    refused_or_message(raw(replaced(HEADER, path, value), BODY))


@given(st.sampled_from(places(OURS)), json_values)
def test_fields_that_lie(path: tuple[Any, ...], value: Any) -> None:
    ours = json.dumps(replaced(OURS, path, value))
    refused_or_message(raw({**HEADER, "__metadata__": {"fedmend": ours}}, BODY))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


dtype_names = st.sampled_from([*wire._DTYPES, "F4", "F8_E5M2", "U64", "x"])
numbers = st.integers(0, 5) | st.sampled_from([2**20, 2**31, 2**40, 2**62, 2**63, 2**64])


@given(
    dtype_names,
    st.lists(numbers, max_size=5),
    st.tuples(numbers, numbers),
    st.binary(max_size=40),
)
def test_tensors_that_lie(
    dtype: str, shape: list[int], offsets: tuple[int, int], body: bytes
) -> None:
    refused_or_message(set_tensor("tensor", body, dtype=dtype, shape=shape))
    refused_or_message(set_tensor("tensor", body, dtype=dtype, shape=shape, data_offsets=offsets))


# Bounded: memory is limited for real, in a process of its own that may die of it

DECODE_ALL = """
import resource, sys
import torch
from fedmend.engines.wire import decode
from fedmend.errors import WireError
held = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (held * 1024 + 96 * 2**20,) * 2)
for line in sys.stdin:
    try:
        decode(bytes.fromhex(line))
    except WireError:
        print("refused")
try:
    torch.zeros(96 * 2**20, dtype=torch.uint8)
except RuntimeError:
    print("limited")
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits memory by /proc and rlimit"
)
def test_hostile_bytes_cannot_make_decoding_allocate_much() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DECODE_ALL],
        input="\n".join(data.hex() for data in HOSTILE.values()),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["refused"] * len(HOSTILE) + ["limited"]


@pytest.mark.parametrize("name", ["many lists", "many keys", "deep nesting"])
def test_headers_stay_small_in_memory(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode(HOSTILE[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 48 * 2**20


def test_two_messages_of_one_name_are_refused() -> None:
    """A type is known by its name: a second one would be taken for the first."""
    with pytest.raises(TypeError, match=r"there is a message federation\.Nothing already"):
        message("federation.Nothing")(type("Nothing", (), {"__module__": "fedmend.elsewhere"}))


@pytest.mark.parametrize("name", ["Mine", "fedavg.Mine", "endpoint.Plan"])
def test_a_message_from_outside_has_a_prefix_that_is_not_ours(name: str) -> None:
    """So that no plugin, whenever it is loaded, can stand where one of our messages will."""
    before = set(MESSAGES)
    last = name.rpartition(".")[2]
    with pytest.raises(TypeError, match=rf"prefix of your own, as in my_package\.{last}"):

        @message(name)
        class Mine:
            x: Annotated[Tensor, Kind.WEIGHTS]

    assert set(MESSAGES) == before


def test_all_our_messages_have_a_prefix_of_ours() -> None:
    for method in METHODS.built_in:
        assert METHODS[method].silo_type
    ours = [name for name, each in MESSAGES.items() if each.__module__.startswith("fedmend.")]
    assert {name.partition(".")[0] for name in ours} <= OUR_PREFIXES
    assert len(ours) > 30
