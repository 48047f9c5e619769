"""A secret is hidden in whatever form a library shows it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from support import SETTINGS
from wherry.cli.spool_commands import secrets_for
from wherry.redact import Redactor, redact
from wherry.spool.journal.journal import Journal

SECRET = 'wJalr/XUtn+FEMI=K7 "MDENG\\ü'


def knowing(*values: object) -> Redactor:
    redactor = Redactor()
    for value in values:
        redactor.learn(value)
    return redactor


FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda secret: secret,
    "quoted": quote,
    "quoted whole": lambda secret: quote(secret, safe=""),
    "quoted with plus": quote_plus,
    "quoted in small letters": lambda secret: re.sub("%..", lambda match: match[0].lower(), quote(secret, safe="")),
    "JSON": lambda secret: json.dumps(secret)[1:-1],
    "JSON in UTF-8": lambda secret: json.dumps(secret, ensure_ascii=False)[1:-1],
    "repr": lambda secret: repr(secret)[1:-1],
}


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_hidden_in_every_form(form: str) -> None:
    assert "GET /?key=***&x=1" == knowing(SECRET).scrub(f"GET /?key={FORMS[form](SECRET)}&x=1")


@pytest.mark.parametrize("before", ["", "k", "us", "key", "user:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_secret_is_hidden_in_base64_beside_other_text(before: str, encode: Callable[[bytes], bytes]) -> None:
    """As in an Authorization header; a few bits at either end, which it shares with its neighbours, are left."""
    secret = "hunter2+/=hunter2"
    said = encode(f"{before}{secret}@".encode()).decode()
    left = knowing(secret).scrub(f"Basic {said}")
    assert "***" in left
    assert len(left) < len("Basic ***") + len(before) * 4 / 3 + 8


@pytest.mark.parametrize(
    "shape",
    [
        lambda secret: {"deep": [{"er": secret}]},
        lambda secret: [secret],
        lambda secret: (secret, {secret}, frozenset([secret])),
        lambda secret: secret.encode(),
        lambda secret: json.dumps({"type": "key", "private": secret}),
    ],
)
def test_a_secret_is_found_however_deep_it_lies(shape: Callable[[str], object]) -> None:
    assert "*** is wrong" == knowing(shape(SECRET)).scrub(f"{SECRET} is wrong")


def test_words_and_small_numbers_stay_and_large_numbers_go() -> None:
    redactor = knowing({"flag": "true", "n": 12, "nothing": None, "is": True, "pin": 83719482})
    assert "that is true, 12 times, None True ***" == redactor.scrub("that is true, 12 times, None True 83719482")


def test_a_secret_that_holds_another_is_taken_out_whole() -> None:
    assert "login *** failed" == knowing({"user": "someone", "line": "someone:password"}).scrub("login someone:password failed")


def test_nothing_is_hidden_before_anything_is_known() -> None:
    assert "text" == Redactor().scrub("text")


@pytest.mark.parametrize("is_by_store", [False, True])
def test_secrets_of_an_options_file_are_hidden_in_all_that_the_command_says(tmp_path: Path, is_by_store: bool) -> None:
    journal = Journal(tmp_path / "journal.db")
    store_id = journal.uploads.store_id("sftp", "host", {}, ("password", "pkey"), SETTINGS)
    secret = f"hunter2+{is_by_store}"
    options = {"password": [secret], "pkey": {"deep": f"{secret}/key"}}
    secrets_for(journal, {str(store_id): options} if is_by_store else options)
    journal.close()
    assert "refused: *** *** ***" == redact(f"refused: {secret}/key {secret} {quote(secret)}")
