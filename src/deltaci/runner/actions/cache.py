"""`uses: cache`: restores folders of earlier runs by a key or key prefixes, and saves them when the job succeeds."""

from __future__ import annotations

from typing import Final

from deltaci.core.errors import Refused
from deltaci.runner.actions.context import JobContext, StepFailed, boolean_input, check_inputs, non_empty_lines

INPUTS: Final = (
    *("path", "key", "restore-keys", "lookup-only", "fail-on-cache-miss", "enableCrossOsArchive", "save-always"),
    "upload-chunk-size",
)
MAX_KEYS: Final = 10
MAX_KEY: Final = 512


async def cache(job: JobContext, value_by_input: dict[str, str]) -> dict[str, str]:
    """Restore the folders now, from the entry with this key or with one of the prefixes. Return the step's outputs.

    If there is no entry with exactly this key, the folders are saved under it when the job succeeds.
    """
    check_inputs(value_by_input, INPUTS)
    cache_key, prefixes = value_by_input.get("key", "").strip(), non_empty_lines(value_by_input.get("restore-keys", ""))
    cached_paths = [path for path in non_empty_lines(value_by_input.get("path", "")) if not path.startswith("!")]
    if not cache_key or not cached_paths:
        raise Refused("bad_spec", "cache needs the inputs 'path' and 'key'")
    if len(prefixes) > MAX_KEYS or any(
        len(key_or_prefix) > MAX_KEY or "," in key_or_prefix for key_or_prefix in (cache_key, *prefixes)
    ):
        raise Refused("bad_spec", f"cache has at most {MAX_KEYS} restore-keys, each of {MAX_KEY} characters, no commas")
    folders = [path for path in cached_paths if not any(character in path for character in "*?[")]
    for path in cached_paths:
        if path not in folders:
            job.log.write_line(f"cache: {path!r} is a pattern, which cannot be cached; name the folder")
    is_lookup = boolean_input(value_by_input, "lookup-only", False)
    matched_key = ""
    if folders:
        matched_key = await job.caches.restore_one(
            cache_key, prefixes, [] if is_lookup else folders, is_saved_on_miss=not is_lookup
        )
    if not matched_key and boolean_input(value_by_input, "fail-on-cache-miss", False):
        raise StepFailed(f"cache {cache_key!r}: nothing was found, and 'fail-on-cache-miss' is set", "")
    return {
        "cache-hit": "true" if matched_key == cache_key else "false" if matched_key else "",
        "cache-primary-key": cache_key,
        "cache-matched-key": matched_key,
    }
