"""`uses: cache`: folders from earlier runs, by a key or by what it begins with; kept when the job succeeded."""

from __future__ import annotations

from typing import Final

from deltaci.core.errors import Refused
from deltaci.runner.actions.context import JobContext, StepFailed, flag, known, lines

INPUTS: Final = (
    *("path", "key", "restore-keys", "lookup-only", "fail-on-cache-miss", "enableCrossOsArchive", "save-always"),
    "upload-chunk-size",
)
MAX_KEYS: Final = 10
MAX_KEY: Final = 512


async def cache(job: JobContext, inputs: dict[str, str]) -> dict[str, str]:
    """Restore now; save at the end what was not found under its own key."""
    known(inputs, INPUTS)
    key, prefixes = inputs.get("key", "").strip(), lines(inputs.get("restore-keys", ""))
    paths = [path for path in lines(inputs.get("path", "")) if not path.startswith("!")]
    if not key or not paths:
        raise Refused("bad_spec", "cache needs the inputs 'path' and 'key'")
    if len(prefixes) > MAX_KEYS or any(len(each) > MAX_KEY or "," in each for each in (key, *prefixes)):
        raise Refused("bad_spec", f"cache has at most {MAX_KEYS} restore-keys, each of {MAX_KEY} characters, no commas")
    plain = [path for path in paths if not any(character in path for character in "*?[")]
    for path in paths:
        if path not in plain:
            job.log.write_line(f"cache: {path!r} is a pattern, which is not kept; name the folder")
    is_lookup = flag(inputs, "lookup-only", False)
    found = ""
    if plain:
        found = await job.caches.restore_one(key, prefixes, [] if is_lookup else plain, is_saved_on_miss=not is_lookup)
    if not found and flag(inputs, "fail-on-cache-miss", False):
        raise StepFailed(f"cache {key!r}: nothing was found, and 'fail-on-cache-miss' is set", "")
    return {
        "cache-hit": "true" if found == key else "false" if found else "",
        "cache-primary-key": key,
        "cache-matched-key": found,
    }
