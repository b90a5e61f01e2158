"""Gitea and Forgejo: webhook payloads in GitHub's form with their own headers; commit statuses."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from deltaci.forges.github import parse_pull_request, parse_push, status_body
from deltaci.forges.projects import ForgeProject
from deltaci.forges.status_decisions import ForgeRequest, ForgeResponse, StatusReport
from deltaci.forges.webhook_event import Delivery, IgnoredEvent, WebhookEvent, hmac_hex, signatures_equal

# Actions of a pull request that GitHub names differently.
_ACTIONS: Final = {"synchronized": "synchronize", "label_updated": "labeled", "label_cleared": "unlabeled"}
_STATES: Final = {
    "pending": "pending",
    "running": "pending",
    "success": "success",
    "failure": "failure",
    "canceled": "error",
    "error": "error",
}
_SIGNATURE_HEADERS: Final = (b"x-forgejo-signature", b"x-gitea-signature")


class Gitea:
    """Parses webhooks and builds commit status requests for Gitea and Forgejo."""

    def has_valid_signature(self, delivery: Delivery, secret: str) -> bool:
        """Return whether the first signature header that is present is valid. The other headers are ignored."""
        expected_digest = hmac_hex(secret, delivery.body)
        for header_name in _SIGNATURE_HEADERS:
            if received_digest := delivery.header(header_name):
                return signatures_equal(received_digest, expected_digest)
        return signatures_equal(delivery.header(b"x-hub-signature-256"), f"sha256={expected_digest}")

    def delivery_id(self, delivery: Delivery) -> str:
        """Return the forge's id of the delivery, or an empty string."""
        return delivery.header(b"x-forgejo-delivery") or delivery.header(b"x-gitea-delivery")

    def event_name(self, delivery: Delivery) -> str:
        return delivery.header(b"x-forgejo-event") or delivery.header(b"x-gitea-event")

    def parse(self, delivery: Delivery) -> WebhookEvent | IgnoredEvent:
        """Return the event of a push or a pull request. Any other event is ignored.

        A test delivery is a push with the same commit before and after, which is ignored, too.
        """
        match self.event_name(delivery):
            case "push":
                return parse_push(delivery.body)
            case "pull_request" | "pull_request_sync" | "pull_request_label":
                return parse_pull_request(delivery.body, _ACTIONS)
            case event_name:
                return IgnoredEvent(f"the event {event_name[:80]!r} is not supported")

    def build_request(self, project: ForgeProject, report: StatusReport, _check_id: str) -> ForgeRequest:
        """Build the request that sets a commit status."""
        owner, _, repository_name = project.repository.partition("/")
        repository = f"{quote(owner, safe='')}/{quote(repository_name, safe='')}"
        url = f"{project.api_root()}/repos/{repository}/statuses/{report.commit}"
        request_headers = {"Authorization": f"token {project.api_token}"}
        return ForgeRequest("POST", url, request_headers, status_body(report, _STATES))

    def repository_request(self, project: ForgeProject, repository_id: str) -> ForgeRequest:
        url = f"{project.api_root()}/repositories/{quote(repository_id, safe='')}"
        return ForgeRequest("GET", url, {"Authorization": f"token {project.api_token}"}, {})

    def accepted_id(self, response: ForgeResponse) -> str | None:
        """Return the id of the created status, or None if the forge did not accept it."""
        return response.id if 200 <= response.status < 300 else None
