"""Settings: read from text and TOML, bounded, and an unknown key offers the nearest."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend.config import describe, from_pairs, from_toml, make, setting
from fedmend.errors import SettingsError, UnknownNameError


@dataclass(frozen=True, kw_only=True)
class Settings:
    rounds: int = setting(50, "rounds of training", low=1, high=100, paper=50)
    lr: float = setting(0.5, "step size", low=0.0, paper=0.1)
    share: float = setting(0.5, "a share", low=0.0, high=1.0)
    keep: bool = setting(True, "whether to keep")
    name: str = setting("adam", "adam or sgd", choices=("adam", "sgd"))
    free: str = setting("", "any text")


def test_defaults() -> None:
    assert make(Settings, {}) == Settings()
    with pytest.raises(FrozenInstanceError):
        Settings().rounds = 3  # type: ignore[misc]  # on purpose


@pytest.mark.parametrize(
    ("key", "given_value", "read"),
    [
        ("rounds", 7, 7),
        ("rounds", "7", 7),
        ("rounds", " 7 ", 7),
        ("rounds", 1, 1),
        ("rounds", 100, 100),
        ("lr", 0, 0.0),
        ("lr", "1e-3", 0.001),
        ("lr", 1, 1.0),
        ("keep", False, False),
        ("keep", "False", False),
        ("keep", "no", False),
        ("keep", "0", False),
        ("keep", "TRUE", True),
        ("keep", "yes", True),
        ("keep", "1", True),
        ("name", "sgd", "sgd"),
        ("free", "true", "true"),
        ("free", "7", "7"),
    ],
)
def test_values_are_read_as_the_settings_type(key: str, given_value: Any, read: Any) -> None:
    found = getattr(make(Settings, {key: given_value}), key)
    assert (found, type(found)) == (read, type(read))


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("rounds", 0, "rounds=0 is not allowed: it must be 1 to 100"),
        ("rounds", 101, "rounds=101 is not allowed: it must be 1 to 100"),
        ("rounds", 7.0, "rounds=7.0 is not allowed: it must be a whole number"),
        ("rounds", "7.5", "rounds='7.5' is not allowed: it must be a whole number"),
        ("rounds", "", "rounds='' is not allowed: it must be a whole number"),
        ("rounds", True, "rounds=True is not allowed: it must be a whole number"),
        ("rounds", None, "rounds=None is not allowed"),
        ("rounds", "9" * 5000, "it must be a whole number"),
        ("lr", -0.1, "lr=-0.1 is not allowed: it must be at least 0.0"),
        ("lr", "nan", "lr=nan is not allowed: it must be a finite number"),
        ("lr", float("nan"), "lr=nan is not allowed: it must be a finite number"),
        ("lr", float("inf"), "lr=inf is not allowed: it must be a finite number"),
        ("lr", "1e999", "lr=inf is not allowed: it must be a finite number"),
        ("lr", 10**400, "it must be a finite number"),
        ("lr", "fast", "lr='fast' is not allowed: it must be a number"),
        ("lr", True, "lr=True is not allowed: it must be a number"),
        ("share", 1.5, "share=1.5 is not allowed: it must be 0.0 to 1.0"),
        ("keep", "maybe", "keep='maybe' is not allowed: it must be true or false"),
        ("keep", 1, "keep=1 is not allowed: it must be true or false"),
        ("free", 7, "free=7 is not allowed: it must be text"),
        ("name", "adm", "unknown value of name 'adm'; did you mean 'adam'?"),
        ("name", "x", r"unknown value of name 'x' \(known: adam, sgd\)"),
    ],
)
def test_values_that_are_not_allowed(key: str, value: Any, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        make(Settings, {key: value})


def test_unknown_key_offers_the_nearest_and_lists_all() -> None:
    with pytest.raises(UnknownNameError) as caught:
        make(Settings, {"round": 3})
    assert str(caught.value) == (
        "unknown setting 'round'; did you mean 'rounds'? "
        "(known: free, keep, lr, name, rounds, share)"
    )
    with pytest.raises(UnknownNameError, match=r"unknown setting 'zzz' \(known"):
        make(Settings, {"zzz": 3})


def test_dashes_are_as_good_as_underscores() -> None:
    @dataclass(frozen=True)
    class Long:
        local_epochs: int = setting(1, "x")

    globals()["Long"] = Long  # postponed annotations are looked up in the module
    assert make(Long, {"local-epochs": "4"}).local_epochs == 4


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    for key in ("rounds", "lr", "keep", "name", "free"):
        try:
            make(Settings, {key: text})
        except SettingsError:
            continue


def test_pairs() -> None:
    assert from_pairs(["lr=0.1", " name = sgd ", "free=a=b", "free2="]) == {
        "lr": "0.1",
        "name": "sgd",
        "free": "a=b",
        "free2": "",
    }
    for bad in ("lr", "=3", " =3", ""):
        with pytest.raises(SettingsError, match="not of the form key=value"):
            from_pairs([bad])


def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text('rounds = 7\nlr = 0.25\nkeep = false\nname = "sgd"\n')
    assert make(Settings, from_toml(path)) == Settings(rounds=7, lr=0.25, keep=False, name="sgd")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"rounds = ", "not valid TOML"),
        (b"\xff\xfe", "not valid TOML"),
        (b"a = " + b"[" * 5000, "not valid TOML"),
        (b"[training]\nrounds = 1", "training must be a single value, settings are flat"),
        (b"rounds = [1, 2]", "rounds must be a single value"),
    ],
)
def test_toml_that_is_none(tmp_path: Path, data: bytes, text: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(data)
    with pytest.raises(SettingsError, match=text):
        from_toml(path)


def test_toml_values_of_other_types(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    for text in ("rounds = 2020-01-01", "lr = nan", "lr = inf", f"lr = {10**400}", "keep = 1"):
        path.write_text(text)
        with pytest.raises(SettingsError, match="is not allowed"):
            make(Settings, from_toml(path))


def test_toml_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere.toml"):
        with pytest.raises(SettingsError, match="cannot read"):
            from_toml(path)


def test_describe() -> None:
    """Default, limits and whether the paper has the same, of every setting and in one way."""
    found = {each.name: each for each in describe(Settings)}
    rounds = found["rounds"]
    assert (rounds.default, rounds.help) == ("50", "rounds of training")
    assert found["keep"].default == "true"
    assert {name: each.allowed for name, each in found.items()} == {
        "rounds": "1 to 100",
        "lr": "0.0 or more",
        "share": "0.0 to 1.0",
        "keep": "true, false",
        "name": "adam, sgd",
        "free": "",
    }
    assert {name: each.paper for name, each in found.items() if each.paper} == {
        "rounds": "as here",
        "lr": "0.1",
    }


def test_a_method_may_have_another_paper_for_the_same_settings() -> None:
    found = describe(Settings, {"rounds": 20, "keep": True})
    papers = {each.name: each.paper for each in found if each.paper}
    assert papers == {"rounds": "20", "lr": "0.1", "keep": "as here"}


def test_what_a_setting_needs_beside_it_is_said() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Some(Settings):
        heads: int = setting(4, "how many", low=1, only={"name": ("adam", "sgd"), "keep": (True,)})

    assert describe(Some)[-1].allowed == "1 or more (with name=adam or sgd) (with keep=true)"


def test_choices_are_looked_up_when_they_are_needed() -> None:
    """A registry may grow after the settings were written down."""
    known = {"one": 1}

    @dataclass(frozen=True, kw_only=True)
    class Chosen:
        name: str = setting("one", "which", choices=known)

    known["two"] = 2
    assert make(Chosen, {"name": "two"}).name == "two"
    assert describe(Chosen)[0].allowed == "one, two"
    with pytest.raises(UnknownNameError, match="known: one, two"):
        make(Chosen, {"name": "six"})
