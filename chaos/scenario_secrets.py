"""Secrets that jobs print in every way that tools have: no stored byte gives one away.

Each variant has a secret of its own, so that a leak says where it came from. What is searched is everything that the
deployment keeps: logs, records, events, names of artifacts, outputs, and what its processes say themselves.
"""

from __future__ import annotations

import base64
import html
import json
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus

import msgspec

from chaos.deployment import Deployment, deployed
from chaos.jobs import over, read_log
from chaos.rows import NotRun, Row, measured
from chaos.stage import Stage
from deltaci.app import BLOBS_FOLDER, KEY_FILE
from deltaci.core.errors import Refused
from deltaci.server.auth.credentials import load_server_key
from deltaci.server.secrets import Secrets
from deltaci.storage.blobs import open_blob_store

FAULT: Final = "secrets in logs, encoded, split, multi-line"
TTL_SECONDS: Final = 11
WINDOW: Final = 10  # So many bytes in a row of a secret, in any of its forms, are a leak.
STRIDE: Final = 2
EDGE: Final = 4  # The first and last characters of base64 belong to its neighbours, too.
PY: Final = sys.executable

Encode = Callable[[str], bytes]


class Variant(msgspec.Struct, frozen=True):
    """A step that prints the secret in `$S`, and what would be found of it."""

    step: str
    shown: Encode = str.encode
    secret: str = "{}-/of+the&house<é>\"'$x"


def encoded(text: str) -> bytes:
    """As base64 shows it, wherever it stands: without the edges."""
    return base64.b64encode(text.encode())[EDGE:-EDGE]


def python(expression: str) -> str:
    """A step that prints what Python makes of it."""
    return f"""{PY} -c 'import base64, html, json, os, sys, urllib.parse as u; s = os.environ["S"]; {expression}'"""


LINES: Final = "-----BEGIN {}-----\nfirst {}\nsecond {}\n-----END-----\n"
VARIANTS: Final[Mapping[str, Variant]] = {
    "plain": Variant('echo "$S"'),
    "on stderr": Variant('echo "$S" >&2'),
    "within a word": Variant('echo "a${S}b"'),
    "many times": Variant('for n in $(seq 500); do printf %s "$S"; done'),
    "the environment": Variant("env; export -p; declare -p; cat /proc/self/environ"),
    "set -x": Variant('set -x; : "$S"; test "$S" = x || true'),
    "printf %q": Variant("printf '%q\\n' \"$S\""),
    "base64": Variant('printf %s "$S" | base64 -w 0', encoded),
    "base64, URL-safe": Variant(python("print(base64.urlsafe_b64encode(s.encode()).decode())"),
                                lambda s: base64.urlsafe_b64encode(s.encode())[EDGE:-EDGE]),
    "base64 of user:secret": Variant('printf "user:%s" "$S" | base64 -w 0',
                                     lambda s: base64.b64encode(b"user:" + s.encode())[8 + EDGE : -EDGE]),
    "base64, one off": Variant('printf "x%s" "$S" | base64 -w 0',
                               lambda s: base64.b64encode(b"x" + s.encode())[EDGE:-EDGE]),
    "URL": Variant(python('print(u.quote(s, safe=""))'), lambda s: quote(s, safe="").encode()),
    "URL, lower case": Variant(python('print(u.quote(s, safe="").lower())'),
                               lambda s: quote(s, safe="").lower().encode()),
    "form": Variant(python("print(u.quote_plus(s))"), lambda s: quote_plus(s).encode()),
    "JSON": Variant(python("print(json.dumps(s))"), lambda s: json.dumps(s).encode()),
    "JSON in JSON": Variant(python("print(json.dumps(json.dumps(s)))"), lambda s: json.dumps(json.dumps(s)).encode()),
    "HTML": Variant(python("print(html.escape(s))"), lambda s: html.escape(s).encode()),
    "hex": Variant('printf %s "$S" | od -An -v -tx1 | tr -d " \\n"', lambda s: s.encode().hex().encode()),
    "hex, upper case": Variant(python("print(s.encode().hex().upper())"), lambda s: s.encode().hex().upper().encode()),
    "letter by letter": Variant(
        f"""{PY} -uc 'import os, sys, time
for c in os.environ["S"]: print(c, end=""); time.sleep(0.005)'"""
    ),
    "in two writes": Variant('printf %s "${S:0:9}"; sleep 0.7; printf "%s\\n" "${S:9}"'),
    "by two processes": Variant('(printf %s "${S:0:9}"); sleep 0.2; (printf "%s\\n" "${S:9}")'),
    "after 64 KiB": Variant('head -c 65530 /dev/zero | tr "\\0" x; echo "$S"'),
    "after a megabyte": Variant('head -c 1048570 /dev/zero | tr "\\0" x; echo "$S"'),
    "between NULs": Variant('printf "\\0\\0%s\\0" "$S"'),
    "unfinished": Variant('printf %s "$S"; exit 3'),
    "many lines": Variant('printf "%s" "$S"', secret=LINES),
    "many lines, with CR": Variant('printf "%s" "$S" | sed "s/$/\\r/"', secret=LINES),
    "one line of many": Variant('printf "%s" "$S" | grep second', secret=LINES),
    "lines, indented": Variant('printf "%s" "$S" | sed "s/^/    | /"', secret=LINES),
    "lines, in another order": Variant('printf "%s" "$S" | tac', secret=LINES),
    "lines, base64": Variant('printf "%s" "$S" | base64',
                             lambda s: base64.b64encode(s.strip().encode())[EDGE:70], LINES),
    "in a file's name": Variant('mkdir left; echo x > "left/$S"; echo x > "left/a-$S-b"', secret="{}"),
    "in the output": Variant(python('json.dump({"a": s, s: 1, "c": ["x" + s]}, open("out.json", "w"))'),
                             secret="{}"),
    "a number in the output": Variant("echo \"{\\\"a\\\": $S}\" > out.json", secret="NUMBER"),
    "in a test report": Variant(
        'echo "<testsuite><testcase name=\\"$S\\"><failure>$S</failure></testcase></testsuite>" > r.xml',
        secret="{}",
    ),
}  # fmt: skip


async def run(stage: Stage) -> AsyncIterator[Row]:
    """Every variant in a job of its own; then everything is searched."""
    async with deployed(stage, "secrets", ttl_seconds=TTL_SECONDS) as deployment:
        kept = Secrets(
            open_blob_store(str(deployment.data / BLOBS_FOLDER)), load_server_key(deployment.data / KEY_FILE)
        )
        runner = deployment.add_runner("r1", slots=4)
        variants = dict(list(VARIANTS.items())[: stage.size(len(VARIANTS), 4)])
        values = {name: _value(variant) for name, variant in variants.items()}
        ids = {}
        for number, (name, variant) in enumerate(variants.items()):
            try:
                kept.set("default", f"CHAOS_{number}", values[name])
            except Refused as refused:
                raise NotRun(refused.message) from refused
            ids[name] = await _asked(deployment, f"CHAOS_{number}", variant)
        bare: list[str] = []  # A job that never had its secret would leak nothing, and show nothing.
        for name, id in ids.items():
            record = await over(deployment, id)
            if (
                b"***" not in read_log(deployment, record)
                and "***" not in f"{record}"
                and "secret" not in f"{record.error}"
            ):
                bare.append(name)
        stage.log(f"{len(ids)} jobs are over")
        stored = _stored(deployment)
        leaks = [name for name, variant in variants.items() if _leaked(variant, values[name], stored)]
        injected = f"{len(variants)} ways to print a secret"
        yield measured(FAULT, injected, "each is printed, and hidden", len(bare), "not hidden", 0, ", ".join(bare))
        note = ", ".join(leaks) or f"{sum(map(len, stored.values())) / 1e6:.1f} MB in {len(stored)} files searched"
        yield measured(FAULT, injected, "no stored run of bytes gives a secret away", len(leaks), "leaks", 0, note)
        alive = 0 if runner.is_running and deployment.servers[0].is_running else 1
        yield measured(FAULT, injected, "runner and server survive", alive, "crashes", 0)
        yield (await deployment.verdict()).row(FAULT, injected)


def _value(variant: Variant) -> str:
    if variant.secret == "NUMBER":
        return str(10**17 + secrets.randbelow(10**17))
    value = variant.secret
    while "{}" in value:
        value = value.replace("{}", secrets.token_hex(12), 1)
    return value


async def _asked(deployment: Deployment, secret: str, variant: Variant) -> str:
    spec: dict[str, Any] = {
        "steps": [f'export S="${secret}"\n{variant.step}'],
        "executor": "process",
        "secrets": [secret],
    }
    if "out.json" in variant.step:
        spec["output_path"] = "out.json"
    elif "left" in variant.step:
        spec["artifacts"] = [{"path_glob": "left/*"}]
    elif "r.xml" in variant.step:
        spec["artifacts"] = [{"path_glob": "r.xml", "type": "junit"}]
    return await deployment.work.ask(spec)


def _stored(deployment: Deployment) -> dict[str, bytes]:
    """All that is kept, by file; but not what is sealed, nor a report that is kept as the job wrote it."""
    found = {}
    for path in [*deployment.data.rglob("*"), *deployment.folder.glob("*.log")]:
        name = str(path)
        if path.is_file() and "/+secrets/" not in name and not name.endswith("=r.xml"):
            found[name] = name.encode() + path.read_bytes()
    return found


def _leaked(variant: Variant, value: str, stored: Mapping[str, bytes]) -> bool:
    # What another secret of this kind has in common with it tells nothing.
    telling = _windows(variant, value, STRIDE) - _windows(variant, _value(variant), 1)
    return any(window in data for window in telling for data in stored.values())


def _windows(variant: Variant, value: str, stride: int) -> set[bytes]:
    """All runs of so many bytes of all its forms."""
    forms = {variant.shown(value), value.encode(), *(line.strip().encode() for line in value.splitlines())}
    return {form[at : at + WINDOW] for form in forms for at in range(0, len(form) - WINDOW + 1, stride)}
