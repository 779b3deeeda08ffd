"""A silo's policy file: what it can say, and that nonsense in it is never taken for consent."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmend.errors import FedmendError, RefusedError
from fedmend.privacy.policy import POLICY_TEMPLATE, Policy, read_policy


def written(folder: Path, text: str) -> Path:
    path = folder / "policy.toml"
    path.write_text(text)
    return path


def test_the_template_is_the_default(tmp_path: Path) -> None:
    assert read_policy(written(tmp_path, POLICY_TEMPLATE)) == Policy()
    assert read_policy(written(tmp_path, "")) == Policy()


def test_what_it_refuses(tmp_path: Path) -> None:
    policy = read_policy(
        written(
            tmp_path,
            'refuse_methods = ["fedper"]\nrefuse_kinds = ["embeddings"]\nlargest_message = 5000\n',
        )
    )
    policy.check_method("fedavg")
    policy.check_kinds(["weights", "framing"], "")
    policy.check_size(5000, "it")
    with pytest.raises(RefusedError, match="takes no part in fedper"):
        policy.check_method("fedper")
    with pytest.raises(RefusedError, match="lets no embeddings leave, which it would"):
        policy.check_kinds(["weights", "embeddings"], "which it would")
    with pytest.raises(RefusedError, match="has 5001 bytes"):
        policy.check_size(5001, "it")


def test_allowed_methods_are_the_only_ones() -> None:
    policy = Policy(allow_methods=("fedavg",), refuse_methods=("fedavg",))
    for method in ("fedavg", "local"):
        with pytest.raises(RefusedError):
            policy.check_method(method)
    Policy(allow_methods=("fedavg",)).check_method("fedavg")


@pytest.mark.parametrize(
    "text",
    [
        "refuse_method = []",
        'refuse_kinds = ["embedding"]',
        'refuse_kinds = ["framing"]',
        'refuse_kinds = "embeddings"',
        "refuse_kinds = [1]",
        "refuse_methods = true",
        "largest_message = 0",
        "largest_message = -1",
        'largest_message = "1 GB"',
        "largest_message = true",
        "refuse_kinds = [",
        "\x00",
        "a = " + "[" * 5000,
    ],
)
def test_nonsense_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(FedmendError):
        read_policy(written(tmp_path, text))


def test_a_missing_policy_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FedmendError, match="cannot read"):
        read_policy(tmp_path / "policy.toml")
