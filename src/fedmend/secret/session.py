"""Secret Message Passing: sums over neighbours in other silos, from shares that tell nothing.

One *pass* moves one row of numbers along every edge between silos (HiFGL, section 4.2, with the
routes of its errata):

1. Each source encodes its message into T + 1 premultiplied Lagrange shares under fresh masks
   (`privacy.lagrange`), one for each relay of this source and target silo: the server first, then
   silos that are neither source nor target. What goes to a silo is sealed for it.
2. Each relay adds up the shares it holds for the same target node, and sends on the sums, sealed
   for the target's silo, with how many shares each sum holds.
3. The target's silo checks that no share is missing, adds the relays' sums, and has the sum over
   the target's neighbours; nothing else can be decoded by fewer than T + 1 relays together.

`SecretMessages` is a silo's side of it, `Router` the server's, which carries what is sealed and
is a relay itself. Nodes go by pseudonyms everywhere. Everything is done on whole arrays: a pass
costs a few operations per pair of silos, however many nodes there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedmend.errors import FederationError, SettingsError
from fedmend.federation import message
from fedmend.graph import csr_tensor
from fedmend.models.kernels.sparse import SparseMatrix
from fedmend.privacy.field import PRIME, add, add_rows, from_field, to_field
from fedmend.privacy.lagrange import LagrangeCode
from fedmend.privacy.ledger import Kind
from fedmend.privacy.masks import MaskGenerator
from fedmend.privacy.mechanism import GaussianMessages
from fedmend.privacy.sealing import KEY_BYTES, Sealing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmend.privacy.field import Elements

    Numbers = NDArray[np.int64]

MOST_KNOWN = 1000
"""Lists of pseudonyms that an `Adder` remembers: a few per pair of silos."""

SERVER = -1
"""The server's number as a relay; silos are numbered by their place among the sorted names."""

ROUTINGS = {
    "relay": "shares go through the server and T other silos, which pass on sums",
    "paper": "all shares go to the target's silo, which could decode each message by itself",
    "clear": "nothing is hidden from the server: only to measure what hiding costs",
}


@message("secret_message_passing.Keys")
class Keys:
    """Who takes part, their public keys, and how many messages a node may add up at most.

    label: what the next pass is for; training: whether weights are to learn from it.
    turn: decides whose turn it is to relay.
    """

    label: Annotated[str, Kind.CONTROL]
    training: Annotated[bool, Kind.CONTROL]
    members: Annotated[Tensor, Kind.CONTROL]
    keys: Annotated[Tensor, Kind.CONTROL]
    summands: Annotated[int, Kind.COUNTS]
    turn: Annotated[int, Kind.CONTROL]


@message("secret_message_passing.Letters")
class Letters:
    """Sealed bytes by the number of the silo they are for (from a silo) or from (to a silo)."""

    label: Annotated[str, Kind.CONTROL]
    sealed: Annotated[dict[str, Tensor], Kind.SEALED]


@message("secret_message_passing.Outgoing")
class Outgoing:
    """A silo's shares of one pass, source to relay: the server's own, and sealed those of silos.

    rows: how many of the server's shares are for each silo's nodes.
    in_clear: the messages themselves, under routing "clear" only.
    """

    label: Annotated[str, Kind.CONTROL]
    shares: Annotated[Tensor, Kind.SHARES]
    pseudonyms: Annotated[Tensor, Kind.PSEUDONYMS]
    rows: Annotated[Tensor, Kind.COUNTS]
    sealed: Annotated[dict[str, Tensor], Kind.SEALED]
    in_clear: Annotated[Tensor, Kind.EMBEDDINGS]


@message("secret_message_passing.Incoming")
class Incoming:
    """A silo's sums of one pass, relay to target: the server's own, and sealed those of silos."""

    label: Annotated[str, Kind.CONTROL]
    sums: Annotated[Tensor, Kind.SHARES]
    pseudonyms: Annotated[Tensor, Kind.PSEUDONYMS]
    counts: Annotated[Tensor, Kind.COUNTS]
    sealed: Annotated[dict[str, Tensor], Kind.SEALED]
    in_clear: Annotated[Tensor, Kind.EMBEDDINGS]


NO_NUMBERS = torch.empty(0, dtype=torch.int64)
NOTHING_IN_CLEAR = torch.empty(0, 0)


def nothing_incoming(label: str) -> Incoming:
    """For a pass in which nothing was sent."""
    none = NO_NUMBERS.reshape(0, 0)
    return Incoming(label, none, NO_NUMBERS, NO_NUMBERS, {}, NOTHING_IN_CLEAR)


# Who relays for whom


@dataclass(frozen=True)
class Secrecy:
    """How messages are hidden.

    threshold: relays (T) that together learn nothing; checks: shares beyond the T + 1 needed.
    """

    routing: str
    threshold: int
    checks: int
    fraction_bits: int

    @property
    def code(self) -> LagrangeCode:
        return LagrangeCode(self.threshold, self.checks)

    @property
    def shares(self) -> int:
        return self.threshold + 1 + self.checks

    def relays(
        self, source: int, target: int, members: Sequence[int], turn: int = 0
    ) -> tuple[int, ...]:
        """Who carries each share from a silo to another: never one of the two themselves.

        In one pass the same few silos relay for everybody, so that there are few letters; with
        every `turn` it is others' turn.
        """
        if self.routing == "paper":
            return (target,) * self.shares
        first = turn % len(members)
        queue = (*members[first:], *members[:first])
        others = (each for each in queue if each not in (source, target))
        return (SERVER, *islice(others, self.shares - 1))

    def check(self, members: int, within_silos: bool) -> None:
        """Refuse a federation with too few relays, before anything is sent."""
        if self.routing != "relay" or (members == 1 and not within_silos):
            return
        # The server is one relay; source and target silo, which may be the same, are none.
        silo_relays = members - (1 if members == 1 else 2)
        if silo_relays + 1 < self.shares:
            asked = f"privacy_threshold={self.threshold}"
            asked += f" with check_shares={self.checks}" if self.checks else ""
            raise SettingsError(
                f"{asked} needs {self.shares} relays for every message, the server and silos that "
                f"neither send nor receive it ({self.shares - 1}), but {members} silos leave "
                f"{max(silo_relays, 0)}: use at least {self.shares + 1} silos, a smaller "
                "privacy_threshold, or routing=paper (weaker: see docs/methods/hifgl.md)"
            )


# Bundles of shares as bytes


@dataclass(frozen=True)
class Bundle:
    """Shares (or sums of them) of one index for nodes of one silo; `counts`: shares per sum."""

    target: int
    index: int
    pseudonyms: Numbers
    shares: Elements
    counts: Numbers | None = None


_HEADER = 5


def pack(bundles: Iterable[Bundle]) -> bytes:
    """Bundles as bytes: for each a header of five numbers, then its arrays."""
    parts: list[Numbers] = []
    for bundle in bundles:
        rows, width = bundle.shares.shape
        counted = int(bundle.counts is not None)
        parts.append(np.array([bundle.target, bundle.index, rows, width, counted], dtype=np.int64))
        parts.append(bundle.pseudonyms)
        if bundle.counts is not None:
            parts.append(bundle.counts)
        parts.append(bundle.shares.reshape(-1).view(np.int64))
    return np.concatenate(parts).tobytes() if parts else b""


def unpack(data: bytes, shares: int) -> list[Bundle]:
    """The bundles in opened bytes; anything that is none is an error."""
    if len(data) % 8:
        raise FederationError("a bundle of shares is cut off")
    numbers = np.frombuffer(data, dtype=np.int64)
    bundles, at = [], 0
    while at < len(numbers):
        header = numbers[at : at + _HEADER].tolist()
        at += _HEADER
        left = len(numbers) - at
        fits = len(header) == _HEADER and min(header) >= 0 and header[4] <= 1
        if not fits or header[1] >= shares or header[2] * (1 + header[3] + header[4]) > left:
            raise FederationError("a bundle of shares is malformed")
        target, index, rows, width, counted = header
        pseudonyms, at = numbers[at : at + rows], at + rows
        counts = None
        if counted:
            counts, at = numbers[at : at + rows], at + rows
        values = numbers[at : at + rows * width].view(np.uint64).reshape(rows, width)
        at += rows * width
        bundles.append(Bundle(target, index, pseudonyms, checked_elements(values), counts))
    return bundles


def checked_elements(values: Elements) -> Elements:
    """The values, if all are field elements."""
    if values.size and int(values.max()) >= PRIME:
        raise FederationError("a bundle of shares holds a number that is no field element")
    return values


class Adder:
    """Adds up shares for the same node; remembers who is whom for lists it has seen before."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Numbers, Numbers, Numbers, Numbers]] = {}

    def groups(self, key: Any, pseudonyms: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The different pseudonyms, which of them each row has, and how often each occurs."""
        # Length and sum tell the lists of different stages apart; equality is what decides.
        key = (key, len(pseudonyms), int(pseudonyms.sum()))
        known = self._known.get(key)
        if known is None or not np.array_equal(known[0], pseudonyms):
            found = np.unique(pseudonyms, return_inverse=True, return_counts=True)
            if len(self._known) >= MOST_KNOWN:  # lists change when silos are lost: forget old ones
                self._known.clear()
            known = self._known[key] = (pseudonyms.copy(), *found)
        return known[1:]

    def add(self, bundles: Iterable[Bundle]) -> list[Bundle]:
        """One bundle for each silo and index, with one sum for each node."""
        together: dict[tuple[int, int], list[Bundle]] = {}
        for bundle in bundles:
            together.setdefault((bundle.target, bundle.index), []).append(bundle)
        added = []
        for (target, index), group in sorted(together.items()):
            if len({bundle.shares.shape[1] for bundle in group}) > 1:
                raise FederationError("shares of one pass have different lengths")
            pseudonyms = np.concatenate([bundle.pseudonyms for bundle in group])
            names, which, counts = self.groups((target, index), pseudonyms)
            shares = np.concatenate([bundle.shares for bundle in group])
            added.append(Bundle(target, index, names, add_rows(shares, which, len(names)), counts))
        return added


# A silo's side


class Route:
    """Which own rows speak to which nodes of other silos: worked out once, used in every pass.

    together: a silo adds up its own rows for the same node, else every edge is a message.
    """

    def __init__(
        self,
        edges: Edges,
        noised: NDArray[np.bool_],
        nodes: int,
        together: bool,
    ) -> None:
        order = np.lexsort((edges.rows, edges.remote, edges.silos))
        rows, silos, remote = edges.rows[order], edges.silos[order], edges.remote[order]
        noised = noised[order]
        first = np.ones(len(rows), dtype=np.bool_)
        if together:
            first[1:] = (remote[1:] != remote[:-1]) | (silos[1:] != silos[:-1])
        self.silos, self.pseudonyms = silos[first], remote[first]
        message_of = np.cumsum(first) - 1
        quiet = ~noised
        ones = np.ones(int(quiet.sum()), dtype=np.float32)
        shape = (len(self.silos), nodes)
        plain = sp.csr_matrix((ones, (message_of[quiet], rows[quiet])), shape=shape)
        self._matrix = SparseMatrix(csr_tensor(plain))
        self._noised_rows = torch.from_numpy(rows[noised])
        self._noised_messages = torch.from_numpy(message_of[noised])

    def messages(self, values: Tensor, mechanism: GaussianMessages | None) -> Tensor:
        """What is said to each node: sums of rows, clipped and noised where that is asked."""
        said = self._matrix.csr @ values
        if mechanism is not None:
            mechanism.add(said, values, self._noised_rows, self._noised_messages)
        return said


@dataclass(frozen=True)
class Edges:
    """Edges by own row, the other end's silo (its number) and the other end's pseudonym."""

    rows: Numbers
    silos: Numbers
    remote: Numbers

    def where(self, mask: NDArray[np.bool_]) -> Edges:
        return Edges(self.rows[mask], self.silos[mask], self.remote[mask])


class Hearing:
    """Which own rows hear from others, and how many messages each must have got."""

    def __init__(self, nodes: Numbers, edges: Edges, together: bool) -> None:
        if together:
            pairs = np.unique(np.stack([edges.rows, edges.silos]), axis=1)
            spoken = pairs[0]
        else:
            spoken = edges.rows
        self.rows, self.expected = np.unique(spoken, return_counts=True)
        order = np.argsort(nodes[self.rows])
        self.rows, self.expected = self.rows[order], self.expected[order]
        self.pseudonyms = nodes[self.rows]

    def places(self, pseudonyms: Numbers) -> Numbers:
        """Where these nodes stand among those that hear."""
        at = np.minimum(np.searchsorted(self.pseudonyms, pseudonyms), len(self.pseudonyms) - 1)
        if len(pseudonyms) and (
            not len(self.pseudonyms) or not np.array_equal(self.pseudonyms[at], pseudonyms)
        ):
            raise FederationError("shares arrived for a node that does not wait for any")
        return at


class SecretMessages:
    """A silo's side of the protocol: its keys, its masks, its routes.

    whose: the silo's name, for messages to its own user only.
    number: the silo's place among all, sorted by name.
    nodes: the pseudonyms of its own nodes.
    mechanism: hides what is said to nodes that hear too few others; None: nobody speaks to them.
    """

    def __init__(
        self,
        whose: str,
        number: int,
        nodes: Numbers,
        secrecy: Secrecy,
        mechanism: GaussianMessages | None,
    ) -> None:
        self.whose, self.number, self.nodes = whose, number, nodes
        self.secrecy, self.mechanism = secrecy, mechanism
        self.code = secrecy.code
        self.hidden = secrecy.routing != "clear"
        self._sealing = Sealing() if self.hidden else None
        self.masks = MaskGenerator() if self.hidden else None
        self.routes: dict[str, Route] = {}
        self.hearings: dict[str, Hearing] = {}
        self.members: tuple[int, ...] = ()
        self._peers: dict[int, bytes] = {}
        self._summands = 1
        self._turn = 0
        self._adder = Adder()

    @property
    def public_key(self) -> Tensor:
        key = bytes(KEY_BYTES) if self._sealing is None else self._sealing.public
        return torch.frombuffer(bytearray(key), dtype=torch.uint8)

    def meet(self, keys: Keys) -> None:
        """Take note of who takes part in what follows."""
        members = keys.members.tolist()
        if keys.keys.shape != (len(members), KEY_BYTES) or keys.keys.dtype != torch.uint8:
            raise FederationError("public keys and members do not fit together")
        self.members = tuple(members)
        self._peers = {
            each: key.numpy().tobytes() for each, key in zip(members, keys.keys, strict=True)
        }
        self._summands, self._turn = keys.summands, keys.turn

    # Sealed letters

    def seal(self, letters: Mapping[int, bytes], label: str) -> Letters:
        """Letters to other silos, each sealed for its receiver."""
        sealed = {}
        for number, data in letters.items():
            if self._sealing is not None:
                data = self._sealing.seal(data, self._peers[number], label)
            sealed[str(number)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return Letters(label, sealed)

    def open(self, letters: Mapping[str, Tensor], label: str) -> dict[int, bytes]:
        """What other silos sealed for this one."""
        opened = {}
        for key, sealed in sorted(letters.items()):
            number = int(key) if key.isdecimal() else -1
            if number not in self._peers or sealed.dtype != torch.uint8:
                raise FederationError("a letter came from nobody who takes part")
            data = sealed.numpy().tobytes()
            if self._sealing is not None:
                data = self._sealing.open(data, self._peers[number], label)
            opened[number] = data
        return opened

    # The three steps of a pass

    def speak(self, stage: str, values: Tensor, label: str) -> Outgoing:
        """Step 1: one row of numbers per own node, out along the stage's routes."""
        route = self.routes[stage]
        said = route.messages(values.detach(), self.mechanism)
        rows = np.bincount(route.silos, minlength=max(self.members) + 1)
        pseudonyms = torch.from_numpy(route.pseudonyms)
        counts = torch.from_numpy(rows)
        if self.masks is None:
            none = NO_NUMBERS.reshape(0, 0)
            return Outgoing(label, none, pseudonyms, counts, {}, said)
        coded = to_field(said.numpy(), self.secrecy.fraction_bits, self._summands, self.whose)
        shares = self.code.encode(coded, self.masks.elements(self.code.threshold, *coded.shape))
        starts = np.concatenate([[0], np.cumsum(rows)])
        letters: dict[int, list[Bundle]] = {}
        for target in np.flatnonzero(rows).tolist():
            part = slice(int(starts[target]), int(starts[target + 1]))
            relays = self.secrecy.relays(self.number, target, self.members, self._turn)
            for index, relay in enumerate(relays):
                if relay != SERVER:
                    bundle = Bundle(target, index, route.pseudonyms[part], shares[index, part])
                    letters.setdefault(relay, []).append(bundle)
        sealed = self.seal({to: pack(bundles) for to, bundles in letters.items()}, label).sealed
        if self.secrecy.routing == "paper":
            none = NO_NUMBERS.reshape(0, 0)
            return Outgoing(label, none, NO_NUMBERS, NO_NUMBERS, sealed, NOTHING_IN_CLEAR)
        first = torch.from_numpy(shares[0].view(np.int64))
        return Outgoing(label, first, pseudonyms, counts, sealed, NOTHING_IN_CLEAR)

    def relay(self, letters: Letters) -> Letters:
        """Step 2: as a relay, add up the shares for each node and send on the sums."""
        bundles = []
        for sender, data in self.open(letters.sealed, letters.label).items():
            for bundle in unpack(data, self.code.shares):
                if self.number in (sender, bundle.target) or bundle.target not in self._peers:
                    raise FederationError("a share came to a relay that must not see it")
                bundles.append(bundle)
        sums: dict[int, list[Bundle]] = {}
        for bundle in self._adder.add(bundles):
            sums.setdefault(bundle.target, []).append(bundle)
        return self.seal({to: pack(each) for to, each in sums.items()}, f"{letters.label} sums")

    def collect(self, stage: str, incoming: Incoming) -> Elements:
        """Step 3, first half: the sums of each share index, for all rows that hear.

        A share that is missing is an error here: without it the sum would decode to nonsense.
        """
        hearing = self.hearings[stage]
        bundles = []
        if len(incoming.pseudonyms):
            if incoming.sums.dim() != 2 or len(incoming.sums) != len(incoming.pseudonyms):
                raise FederationError("the server's sums and their nodes do not fit together")
            sums = checked_elements(incoming.sums.numpy().view(np.uint64))
            names, counts = incoming.pseudonyms.numpy(), incoming.counts.numpy()
            bundles.append(Bundle(self.number, 0, names, sums, counts))
        direct = self.secrecy.routing == "paper"
        label = incoming.label if direct else f"{incoming.label} sums"
        opened = self.open(incoming.sealed, label).values()
        came = [bundle for data in opened for bundle in unpack(data, self.code.shares)]
        bundles += self._adder.add(came) if direct else came
        width = max((bundle.shares.shape[1] for bundle in bundles), default=0)
        total = np.zeros((self.code.shares, len(hearing.rows), width), dtype=np.uint64)
        heard = np.zeros((self.code.shares, len(hearing.rows)), dtype=np.int64)
        for bundle in bundles:
            if bundle.target != self.number or bundle.counts is None:
                raise FederationError("sums arrived that are another silo's")
            if bundle.shares.shape[1] != width or len(bundle.counts) != len(bundle.pseudonyms):
                raise FederationError("sums of one pass have different lengths")
            at = hearing.places(bundle.pseudonyms)
            total[bundle.index, at] = add(total[bundle.index, at], bundle.shares)
            heard[bundle.index, at] += bundle.counts
        missing = int((heard != hearing.expected).any(axis=0).sum())
        if missing:
            raise FederationError(
                f"{self.whose}: a message was lost: shares for {missing} of its nodes are missing "
                f"or too many ({incoming.label}), so nothing was decoded"
            )
        return total

    def decode(self, sums: Elements) -> NDArray[np.float64]:
        """Step 3, second half: the sums of the messages themselves."""
        if not self.code.consistent(sums):
            raise FederationError(
                f"{self.whose}: a share is wrong: the shares of a sum contradict each other, so "
                "nothing was decoded; a relay has changed or damaged what it passed on"
            )
        return from_field(self.code.decode(sums), self.secrecy.fraction_bits)

    def placed(self, stage: str, decoded: NDArray[np.float64], width: int) -> Tensor:
        """Decoded sums at their rows among all own nodes; zero where nobody is heard."""
        out = torch.zeros(len(self.nodes), width)
        if decoded.size:
            if decoded.shape[1] != width:
                raise FederationError(f"sums of {decoded.shape[1]} numbers came, not of {width}")
            out[torch.from_numpy(self.hearings[stage].rows)] = torch.from_numpy(decoded).float()
        return out

    def heard_in_clear(self, stage: str, incoming: Incoming, width: int) -> Tensor:
        """Step 3 where nothing is hidden."""
        out = torch.zeros(len(self.nodes), width)
        hearing = self.hearings[stage]
        at = hearing.places(incoming.pseudonyms.numpy())
        out[torch.from_numpy(hearing.rows[at])] = incoming.in_clear.reshape(-1, width)
        return out


# The server's side

Relaying = Callable[[Mapping[int, Letters]], Mapping[int, Letters]]
"""Has each of these silos relay its letters, and gives their letters to the targets."""


class Router:
    """The server's side: it carries what is sealed, and is the first relay of every message."""

    def __init__(self, secrecy: Secrecy) -> None:
        self._secrecy = secrecy
        self._adders: dict[str, Adder] = {}

    def carry(
        self, stage: str, outgoing: Mapping[int, Outgoing], relay: Relaying
    ) -> dict[int, Incoming]:
        """One pass: what each silo said, through the relays, as what each silo hears."""
        label = next(iter(outgoing.values())).label
        letters = forwarded({number: each.sealed for number, each in outgoing.items()})
        if self._secrecy.routing == "relay":
            passed = relay({to: Letters(label, each) for to, each in letters.items()})
            letters = forwarded({number: each.sealed for number, each in passed.items()})
        adder = self._adders.setdefault(stage, Adder())
        if self._secrecy.routing == "clear":
            return self._in_clear(label, outgoing, adder)
        incoming = {}
        sums = {bundle.target: bundle for bundle in adder.add(_own_bundles(outgoing))}
        for number in outgoing:
            mine = sums.get(number)
            sealed = letters.get(number, {})
            if mine is None or mine.counts is None:
                none = nothing_incoming(label)
                incoming[number] = Incoming(
                    label, none.sums, NO_NUMBERS, NO_NUMBERS, sealed, NOTHING_IN_CLEAR
                )
                continue
            incoming[number] = Incoming(
                label,
                torch.from_numpy(mine.shares.view(np.int64)),
                torch.from_numpy(mine.pseudonyms),
                torch.from_numpy(mine.counts),
                sealed,
                NOTHING_IN_CLEAR,
            )
        return incoming

    def _in_clear(
        self, label: str, outgoing: Mapping[int, Outgoing], adder: Adder
    ) -> dict[int, Incoming]:
        said = torch.cat([each.in_clear for each in outgoing.values()])
        pseudonyms = np.concatenate([each.pseudonyms.numpy() for each in outgoing.values()])
        silos = np.concatenate(
            [np.repeat(np.arange(len(each.rows)), each.rows.numpy()) for each in outgoing.values()]
        )
        names, which, _ = adder.groups("all", pseudonyms)
        sums = torch.zeros(len(names), said.shape[1])
        sums.index_add_(0, torch.from_numpy(which), said)
        silo_of = np.zeros(len(names), dtype=np.int64)
        silo_of[which] = silos
        found = {}
        for number in outgoing:
            mine = np.flatnonzero(silo_of == number)
            found[number] = Incoming(
                label,
                NO_NUMBERS.reshape(0, 0),
                torch.from_numpy(names[mine]),
                NO_NUMBERS,
                {},
                sums[torch.from_numpy(mine)],
            )
        return found


def _own_bundles(outgoing: Mapping[int, Outgoing]) -> list[Bundle]:
    """The server's own shares, by target silo."""
    bundles = []
    for each in outgoing.values():
        shares = each.shares.numpy().view(np.uint64)
        rows = each.rows.numpy()
        if rows.sum() != len(shares) or len(shares) != len(each.pseudonyms) or (rows < 0).any():
            raise FederationError("a silo's shares and their nodes do not fit together")
        starts = np.concatenate([[0], np.cumsum(rows)])
        for target in np.flatnonzero(rows).tolist():
            part = slice(int(starts[target]), int(starts[target + 1]))
            bundles.append(
                Bundle(target, 0, each.pseudonyms.numpy()[part], checked_elements(shares[part]))
            )
    return bundles


def forwarded(sealed: Mapping[int, Mapping[str, Tensor]]) -> dict[int, dict[str, Tensor]]:
    """Letters sorted by receiver instead of by sender."""
    by_receiver: dict[int, dict[str, Tensor]] = {}
    for sender, letters in sorted(sealed.items()):
        for receiver, letter in sorted(letters.items()):
            by_receiver.setdefault(int(receiver), {})[str(sender)] = letter
    return by_receiver
