"""What counts as a secret, how it is masked, and how the value comes back."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import pickle
from collections import OrderedDict, deque, namedtuple
from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import paceline
from paceline.air.checkpoint import Checkpoint
from paceline.air.secrets import (
    Secret,
    filled,
    is_secret_name,
    masked,
    missing_secrets,
    secret_paths,
    text_without_passwords,
    without_credentials,
)

MASK = {"secret": True}


def test_a_secret_is_text_with_another_repr() -> None:
    secret = paceline.Secret("value")
    assert paceline.Secret is Secret
    assert secret == "value"
    assert f"{secret}" == "value"
    assert repr(secret) == "***"
    assert repr({"key": secret}) == "{'key': ***}"
    for again in (pickle.loads(pickle.dumps(secret)), copy.deepcopy(secret)):
        assert again == "value"
        assert type(again) is Secret
    with pytest.raises(TypeError, match="bytes"):
        Secret(b"value")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        *("password", "db_password", "dbPassword", "DB-PASSWORD", "passwd", "ssh.passphrase", "secret", "clientSecret"),
        *("api_key", "apiKey", "APIKey", "OPENAI_API_KEY", "openai.api-key", "apikey", "aws_secret_access_key"),
        *("privateKey", "credential", "credentials", "token", "hf_token", "HFToken", "authToken", "api_token"),
    ],
)
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)
    assert masked({name: "value"}) == {name: MASK}
    assert masked({name: b"value"}) == {name: MASK}
    for number in (5, 0.5, True, None):
        assert masked({name: number}) == {name: number}


@pytest.mark.parametrize(
    "name",
    [
        *("eos_token", "padToken", "bos_token", "unk_token", "cls_token", "sep_token", "mask_token"),
        *("tokens", "max_tokens", "token_id", "tokenizer", "key", "secretary", "secret_name", "passwordless"),
        *("monkey", "api_key_name", "primary_key", "", "_", 5, None),
    ],
)
def test_other_names(name: Any) -> None:
    config = {name: "value"}
    assert masked(config) is config


@dataclasses.dataclass(frozen=True)
class Account:
    user: str
    password: str


Login = namedtuple("Login", ["user", "token"])


class Client:
    def __init__(self, api_key: str) -> None:
        self.api_key = api_key

    def __repr__(self) -> str:
        return f"Client({self.api_key})"


class Shown:
    """An object whose repr shows all that it has."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __repr__(self) -> str:
        return f"Shown({vars(self)})"

    def method(self) -> None: ...


def test_nested_values() -> None:
    config = {
        "lists": [{"token": "v"}, ("a", {"password": "v"})],
        "below": {"credentials": {"user": "v", "port": 5, "hosts": ["v"]}},
        "typed": [Secret("v"), "a"],
    }
    assert masked(config) == {
        "lists": [{"token": MASK}, ("a", {"password": MASK})],
        "below": {"credentials": {"user": MASK, "port": 5, "hosts": [MASK]}},
        "typed": [MASK, "a"],
    }
    assert config["typed"] == ["v", "a"]


@pytest.mark.parametrize(
    "value",
    [
        Account("u", "hush"),
        Login("u", "hush"),
        OrderedDict(api_key="hush"),
        {Secret("hush")},
        {Secret("hush"): 1},
        {"passwords": {"password": {"hush"}}},
        Client("hush"),
        partial(Client, api_key="hush"),
        partial(print, {"api_key": "hush"}),
        partial(print, client=Client("hush")),
        Shown(inner={"api_key": "hush"}),
        Shown(inner=Shown(inner=[Account("u", "hush")])),
        Shown(inner=deque([Shown(api_key="hush")])),
        Shown(credentials=Shown(value="hush")),
        Shown(api_key="hush").method,
        deque([{"api_key": "hush"}]),
        {"api_key": "hush"}.items(),
        {"a": {"api_key": "hush"}}.values(),
        {Login("u", "hush"): 1}.keys(),
        SimpleNamespace(inner=argparse.Namespace(password="hush")),
    ],
)
def test_no_form_shows_the_secret(value: Any) -> None:
    config = {"a": {"b": value}}
    for encode in (repr, msgspec.json.Encoder(enc_hook=repr).encode):
        assert "hush" in str(encode(config)) or Secret in map(type, getattr(value, "__iter__", list)())
        assert "hush" not in str(encode(masked(config)))


def test_objects_without_secrets_stay_as_they_are() -> None:
    chain = Shown(name="end")
    for _ in range(5000):
        chain = Shown(name="link", next=chain)
    chain.first = chain  # type: ignore[attr-defined]
    config = {"a": [chain, Shown(inner={"eos_token": "</s>", "token": 5})], "b": deque(["text"]), "c": {"d": 1}.items()}
    assert masked(config) is config
    shown = masked({**config, "api_key": "hush", "client": Shown(chain=chain, api_key="hush")})
    assert shown["a"][0] is chain
    assert shown["client"] == MASK


def test_an_object_that_shares_a_secret_with_one_before_it() -> None:
    shared = {"api_key": "hush"}
    assert masked([Shown(inner=shared), Shown(inner=shared)]) == [MASK, MASK]


def test_an_object_that_cannot_be_searched_is_masked() -> None:
    class Broken(dict[str, Any]):
        def items(self) -> Any:
            raise OSError("closed")

    assert masked({"a": Shown(inner=Broken())}) == {"a": MASK}


class MadeOnAccess(Mapping[str, Any]):
    """Each look at a section makes a new one, at the address of the last."""

    def __init__(self, sections: dict[str, tuple[type, list[tuple[str, str]]]]) -> None:
        self._sections = sections

    def __getitem__(self, key: str) -> Any:
        kind, pairs = self._sections[key]
        return kind([dict(pairs)]) if kind is not dict else dict(pairs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)


@pytest.mark.parametrize("kind", [dict, list, tuple])
def test_sections_that_are_made_on_access(kind: type) -> None:
    sections = {f"section{number}": (kind, [("user", f"user{number}")]) for number in range(20)}
    config = MadeOnAccess({**sections, "last": (kind, [("api_key", "hush")])})
    expected = {name: config[name] for name in sections}
    expected["last"] = {"api_key": MASK} if kind is dict else kind([{"api_key": MASK}])
    assert secret_paths(config) == [("last", "api_key") if kind is dict else ("last", 0, "api_key")]
    assert dict(masked(config)) == expected
    assert dict(masked({"inner": config})["inner"]) == expected


def test_a_structure_that_contains_itself() -> None:
    config: dict[str, Any] = {"api_key": "hush", "rest": []}
    config["rest"].append(config)
    shown = masked(config)
    assert "hush" not in repr(shown)
    assert shown["rest"][0] is shown
    harmless: dict[str, Any] = {}
    harmless["self"] = harmless
    assert masked(harmless) is harmless


def test_values_come_back_from_the_config_that_is_passed_again() -> None:
    config: dict[str, Any] = {"api_key": "v", "db": [{"password": "w"}], "lr": 0.1}
    paths = secret_paths(config)
    assert paths == [("api_key",), ("db", 0, "password")]
    for same in (deque(config["db"]), {1: config["db"][0]}.values()):
        assert missing_secrets(secret_paths({"db": same}), {"db": same}) == []
        assert filled(masked({"db": same}), {"db": same}) == {"db": config["db"]}
    assert filled(masked(config), config) == config
    assert filled({**masked(config), "lr": 0.2}, config) == {**config, "lr": 0.2}
    assert missing_secrets(paths, config) == []
    assert missing_secrets(paths, {"api_key": MASK, "db": []}) == ["api_key", "db/0/password"]
    assert filled(masked(config), {}) == masked(config)


def test_credentials_in_a_uri_are_not_shown() -> None:
    uri = "memory://key:canary@bucket/x?token=canary"
    assert without_credentials(uri) == "memory://bucket/x"
    assert without_credentials("/data/what?/x@y") == "/data/what?/x@y"
    assert repr(Checkpoint(uri)) == "Checkpoint(uri='memory://bucket/x')"


def test_passwords_in_the_uris_of_a_text_are_not_shown() -> None:
    text = "cannot reach s3://key:canary@bucket/x (or http://me:canary@host:80/?a=b, http://host:80/@x)"
    assert text_without_passwords(text) == (
        "cannot reach s3://***@bucket/x (or http://***@host:80/?a=b, http://host:80/@x)"
    )
    assert text_without_passwords("a:b@c") == "a:b@c"
