"""Gitea and Forgejo: events much like GitHub's, with headers of their own; commit statuses out."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from deltaci.forges.github import read_pull_request, read_push, status_body
from deltaci.forges.projects import ForgeProject
from deltaci.forges.status_state import Answer, Call, Report
from deltaci.forges.webhook_event import Delivery, Heard, Nothing, hmac_hex, same

# Their words for what GitHub calls otherwise.
_ACTIONS: Final = {"synchronized": "synchronize", "label_updated": "labeled", "label_cleared": "unlabeled"}
_STATES: Final = {
    "pending": "pending",
    "running": "pending",
    "success": "success",
    "failure": "failure",
    "canceled": "error",
    "error": "error",
}
_SIGNATURES: Final = (b"x-forgejo-signature", b"x-gitea-signature")


class Gitea:
    """Both of them."""

    def is_signed(self, delivery: Delivery, secret: str) -> bool:
        """By the first signature that is there: a bad one is not made good by another."""
        expected = hmac_hex(secret, delivery.body)
        for name in _SIGNATURES:
            if told := delivery.header(name):
                return same(told, expected)
        return same(delivery.header(b"x-hub-signature-256"), f"sha256={expected}")

    def delivery_id(self, delivery: Delivery) -> str:
        """As it is called."""
        return delivery.header(b"x-forgejo-delivery") or delivery.header(b"x-gitea-delivery")

    def read(self, delivery: Delivery) -> Heard | Nothing:
        """Pushes and pull requests. A test of theirs is a push that moves nothing."""
        event = delivery.header(b"x-forgejo-event") or delivery.header(b"x-gitea-event")
        match event:
            case "push":
                return read_push(delivery.body)
            case "pull_request" | "pull_request_sync" | "pull_request_label":
                return read_pull_request(delivery.body, _ACTIONS)
            case other:
                return Nothing(f"nothing follows from the event {other[:80]!r}")

    def call(self, project: ForgeProject, report: Report, _check: str) -> Call:
        """A commit status."""
        owner, _, name = project.repository.partition("/")
        at = f"{project.api()}/repos/{quote(owner, safe='')}/{quote(name, safe='')}/statuses/{report.commit}"
        return Call("POST", at, {"Authorization": f"token {project.api_token}"}, status_body(report, _STATES))

    def told(self, answer: Answer) -> str | None:
        """The id of the status; None: it was not taken."""
        return answer.id if 200 <= answer.status < 300 else None
