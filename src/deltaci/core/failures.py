"""Classification of failed attempts, and the decision to retry.

Rules classify a failure by its error code, signal, exit code, test reports and the tail of its log. The class, the rule
and the line that matched are stored in the event, so that a person can see why a job was or was not retried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Final

import msgspec

INFRA: Final = "INFRA"
TOOLING: Final = "TOOLING"
FLAKY: Final = "FLAKY"
USER: Final = "USER"
CLASSES: Final = (INFRA, TOOLING, FLAKY, USER)
RETRYABLE: Final = (INFRA, TOOLING, FLAKY)

# What a runner reports if its own work for a job failed, not the job's.
WORKER_FAULT_CODES: Final = frozenset({"RUNNER_STARTUP", "CHECKOUT", "UPLOAD"})

MAX_LOG_LINES: Final = 50  # A line further from the end of the log is no evidence.
MAX_EXPLANATION_LINES: Final = 10  # After the line with the cause.
MAX_LINE_CHARS: Final = 300
MAX_RULES: Final = 100  # Per project, in addition to the built-in rules.


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence about a failed attempt that rules are matched against."""

    exit_code: int | None = None
    signal: int | None = None
    error_code: str = ""
    message: str = ""
    log_tail: tuple[str, ...] = ()
    failed_tests: tuple[str, ...] = ()
    flaky_tests: tuple[str, ...] = ()


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A classified failure: its class, whether it may be retried, and the evidence.

    `line` is the log line that the rule matched; `message` is the first line of the error message, for people.
    """

    code: str
    failure_class: str
    is_retryable: bool
    rule: str
    line: str = ""
    message: str = ""


class FailureRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that classifies failures. All of its conditions must hold; empty ones are ignored."""

    name: str
    failure_class: str
    is_retryable: bool
    error_codes: tuple[str, ...] = ()
    exit_codes: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    log_pattern: str = ""
    all_failed_tests_flaky: bool = False
    has_failed_tests: bool = False


def _by_log(name: str, failure_class: str, *alternatives: str) -> FailureRule:
    """Return a rule for failures whose log has a line that one of these patterns matches."""
    return FailureRule(
        name=name,
        failure_class=failure_class,
        is_retryable=failure_class != USER,
        log_pattern="|".join(alternatives),
    )


# Of these rules, the one that matches the line nearest to the end of the log decides; in one line, the first. The names
# of the newer ones contain a colon, so that no rule of a user has the same name.
LOG_RULES: Final[tuple[FailureRule, ...]] = (
    _by_log(
        "job:tests",
        USER,
        r"assertionerror|assertionfailed|err_assertion|assertion .{0,40}failed|failed asserting|--- fail:",
        r"short test summary",
        r"(failed|error) [^ ]{1,150}\.py|there were failing tests|there are test failures|test result: failed",
        r"\[  failed  \]",
        r"tests? failed|failed tests?\b|tests:? {1,9}\d{1,5} failed|snapshots? failed|failures(: |=)[1-9]",
        r"errors(: |=)[1-9]|\) failed$",
        r"\b[1-9]\d{0,2} (tests? |specs? |scenarios? |examples? |assertions? )?(failed|failures?|failing)\b|not ok \d",
    ),
    _by_log(
        "job:tests-summary",
        USER,
        r"tests? completed, [1-9]|failed \d{1,5} (of|tests?)|[1-9] of \d{1,6} failed",
        r"[1-9] errors? in \d{1,4}\.\d|\*\*\* failed",
        r"failed!  -|failing scenarios|failed in \d{1,4} out of|^fail\s[^ ]{1,100}\s\d|test timed out|test timeout of",
        r"exceeded timeout of|timeout >\d|panicked at|^test .{1,100} \.\.\. failed|expect\(.{0,80}\)",
        r"data race|coverage of \d",
    ),
    _by_log(
        "job:build",
        USER,
        r":\d{1,6}: (fatal )?error:|error\[e\d|error (ts|cs)\d|compil(ation|e) ?(error|failed|failure)",
        r"cannot find symbol",
        r"unresolved reference|undefined reference|undefined: |syntaxerror|cannot find module",
        r"couldn.t match expected type",
        r"(modulenotfound|import|key|name|attribute|value|index|zerodivision)error\b|module not found",
        r"command not found",
        r"unbound v|no rule to make|panic: runtime error|nullpointerexception|implied by .-d|\bsc\d{4} ",
        r"configure: error",
    ),
    _by_log(
        "job:lint",
        USER,
        r"\b[1-9]\d{0,4} (problems?|offenses?|violations?|issues?|fixable)\b|found [1-9]\d{0,4} (errors?|warnings?)",
        r"would (be )?reformat|style issues found|issues found: [1-9]",
    ),
    _by_log(
        "network:rate-limit",
        INFRA,
        r"too ?many ?requests|rate limit (exceeded|reached)|(exceeded|reached) .{0,20}rate limit|slowdown",
        r"rate exceeded",
        r"reduce your request rate|throttling|(http|status|code|error|fetch| e|_e)[^a-z\"]{0,12}429\b",
    ),
    _by_log(
        "job:rejected",
        USER,
        r"\b(401|403|404|410|422)[^a-z0-9]{1,5}(unauthori|forbidden|not ?found|gone|client error|error|validation)",
        r"(http|status|code|error|fetch| e|_e)[^a-z\"]{0,12}(401|403|404|410|422)\b|permission denied|access ?denied",
        r"authentication failed|not authorized|is forbidden|bad credentials|certificate verify failed|self-signed",
        r"does not exist|manifest unknown|repository not found|host key verification|no_pubkey|no urls in mirrorlist",
    ),
    _by_log(
        "disk-or-memory",
        INFRA,
        r"no space left on device|enospc|disk quota exceeded|not enough space|cannot allocate memory",
        r"out of memory: kill",
        r"llvm error: out of memory|out of memory allocating|insufficient memory|read-only file system",
        r"input/output error",
        r"resource temporarily unavailable|pthread_create failed|unable to create (new )?native thread",
    ),
    _by_log(
        "disk-or-memory:killed",
        INFRA,
        r"killed signal terminated|killed \(program|^killed$|\d\s+killed\b|signal: killed|command: killed",
        r"oomkilled|oom-kill",
        r"sigkill|signal:? 9\b|daemon (has )?disappeared|worker process .{0,40}was terminated|shutdown signal",
        r"the bug is not reproducible|rustc.{0,150}\(signal: 11|worker exited unexpectedly",
    ),
    _by_log(
        "service:not-ready",
        INFRA,
        r"database system is (starting up|shutting down)|is the server running on|server closed the connection",
        r"can.t connect to (local )?mysql|lost connection to mysql|serverselectionerror|loading the dataset in memory",
        r"timed out waiting for (a node|container|.{0,20}port)|timeout occurred after waiting|waiting on dependencies",
        r"connect to the docker daemon|vault is sealed|etcdserver: request timed out|\(servertimeout\)|kubelet-check",
    ),
    _by_log(
        "service:in-use",
        INFRA,
        r"address already in use|port is already allocated|port \d{1,5} was already in use|eaddrinuse",
        r"acquiring the state lock|could not get lock|dpkg frontend lock|unable to lock database",
    ),
    _by_log(
        "service:browser",
        INFRA,
        r"session not created|devtoolsactiveport|chrome (has crashed|failed to start)|failed to launch the browser",
        r"test runner unexpectedly exited|cypress verification timed out|browser has disconnected|browser closed unexp",
    ),
    _by_log(
        "transfer:curl",
        INFRA,
        r"curl(: | error )\((5|6|16|18|28|35|52|55|56|92)\)|curl error (6|7|28|35|52|56|92)\b",
    ),
    _by_log(
        "package-registry",
        TOOLING,
        r"could not fetch url|etimedout|econnreset|esockettimedout|eidletimeout|socket hang up|(err!|error) network",
        r"failed to fetch .{0,200}(packages|inrelease|\[ip)|hash sum mismatch|mirror sync in progress",
        r"undetermined error",
        r"retry\(total=0|temporary error \(try|mirrors were (already )?tried|spurious network error|operation too slow",
    ),
    _by_log(
        "package-registry:download",
        TOOLING,
        r"incompleteread|incomplete-download|readtimeout(error)?\b|connecttimeouterror|timeout was reached|fetch error",
        r"connection failed \[ip|too many connection resets|net::(open|read)timeout|http 000 connection failed",
        r"package fetch failed|und_err_(socket|connect)|unable to load the service index|all attempts to connect",
        r"network (error|failure)|unexpected end of file|(failed to|could not|couldn.t) download.{0,80}caused by$",
    ),
    _by_log(
        "network",
        INFRA,
        r"connection (reset|aborted|broken|closed by|unexpectedly closed|closed before)",
        r"(disconnect|write): broken pipe|other side closed",
        r"connect(ion)? timed? ?out|(operation|request|read) timed out|timed out (while|connecting|reading|when)",
        r"timeout exceeded when|i/o timeout|tls handshake timeout|the handshake|client\.timeout",
        r"unexpected eof|early eof",
        r"hung up unexpectedly|network is unreachable|no route to host|recv error|ssl_error_syscall|unexpected_eof",
    ),
    _by_log(
        "network:broken",
        INFRA,
        r"transfer closed with|stream error|internal_error|rpc failed|closed connection|disconnected before",
        r"connectionclosed",
        r"unable to access .{0,150}(failed to connect|could not)|unreachable!|banner exchange|kex_exchange",
        r"not closed cleanly",
        r"timeout waiting for ssh|could not connect to the endpoint|request canceled while",
    ),
    _by_log(
        "network:names",
        INFRA,
        r"temporary failure (in name resolution|resolving)|could(n.t| not) resolve host|eai_again|server misbehaving",
        r"dns error|host lookup|unable to resolve host|unknown ?host|name or service not known|no such host",
    ),
    _by_log(
        "network:server-error",
        INFRA,
        r"\b50[0234]\b[^a-z]{0,12}(internal server|bad gateway|service|gateway|server error|backend|slow)",
        r"(http|status|code|error|got|returned|fetch| e|_e)[^a-z\"]{0,12}50[0234]\b|service (temporarily )?unavailable",
        r"bad gateway|gateway time-?out|\) unavailable: |code = unavailable",
        r"service is (temporarily|currently) unavailable",
    ),
    _by_log(
        "job:other",
        USER,
        r"\bdiffers?\b|\bmismatch|\bduplicated?\b|undeclared|\bconflict|already exists|out of date|\bviolat|\bassert",
        r"\b(must|should) (be|have|not)\b|is not (valid|defined|allowed|permitted|supported|a )|condition failed",
        r"\bexpected\b.{0,80}\b(got|found|but|actual|received)\b|(threshold|limit).{0,40}exceeded|^(---|\+\+\+|@@) ",
        r"(^| )(missing|unsupported|wrong|incorrect|outdated|unused|obsolete|ambiguous|at (least|most))\b",
        r"too (large|small|long|old|few)|(less|more|fewer|lower|higher|longer|larger) than",
    ),
)

# Such a line tells of something that the job survived, or it quotes a value, a difference or source code. It is no
# evidence, except for the rule of the signs that only package managers print.
NO_EVIDENCE: Final = (
    r"retrying( in| after|,|;|\.|$)|will retry|trying (again\.|again in|the next|next)|[( ]attempt \d|attempt \d{1,3}:",
    r"retry\(total=[1-9]|(retries|tries) (left|remaining)|continuing|^warn(ing)?\b|\b(warn(ing)?|info|debug|trace):? ",
    r"\[warn|test suites: |^ {0,8}\d{1,6} \| |^[-+][^-+]|^[<>] |\" [1-5]\d\d \d|, want |\bbut (was|got)\b",
    r"instead of|\bto equal",
    r"^[# ]{0,9}(expected|received|got|actual|wanted|found) ?[:=]|[!=]==? ?['\"]",
    r"['\"`<](50\d )?(service unavailable|bad gateway|connection (reset|timed out)|e?timed?out|econnreset)['\"`>]",
    r"\"level\":|^[\[(]?\d{4}-\d\d-\d\d.{0,40}\berror\b[^\d]{2}|% (errors|fail)|\b(is|are) (not )?allowed",
)
_SPECIFIC_RULE: Final = "package-registry"
LOCAL_ADDRESS: Final = r"\blocalhost\b|\b127\.0\.0\.1\b|\[::1\]"  # What these answer tells nothing about the network.
# Programs print such lines after their error: the names of failed steps, places in their code, and advice. The words of
# the general rules are evidence only if no other text follows.
CLOSING: Final = (
    r"error|err!|fail|fatal|abort|unable|could(n.t| not)|can(no|')t|not recoverable|not found|invalid",
    r"giving up|halted|terminated",
    r"^(\s{4}|\t)|^\s{1,3}(at|in|from|to|file|errno|code|syscall|[\d.→>│|\"(])|^[│╷╵]|^#\d{1,3} |caused by",
    r"above exception|traceback|help|stack ?trace|(debug|complete|full|more|the|see).{0,20}(log|info|insight)|\binfo\b",
    r"^.{0,3}(try|run|visit|see|please|make sure|continue\.|and the repository|you can)\b|\bnote:",
    r"\[notice\]|^node\.js v",
    r"total time|elapsed|completed in|actionable|deprecated|recap|unreachable=|^platform|version: |^url: |request url",
    r"^(get|hit|ign|fetched|reading|building)\b|authorization header|exit(ed)?( with)? (code|status)",
    r"^\S+ \[--|dockerfile:\d",
    r"lost connection|clean(ing)? ?up",
)
_GENERAL_RULES: Final = ("network", "package-registry:")
_WEAK_RULE: Final = "job:other"  # Its words say little about what follows them.
_NO_EVIDENCE: Final = "|".join(NO_EVIDENCE)
_CLOSING: Final = "|".join(CLOSING)
_LOG_RULE_NAMES: Final = frozenset(rule.name for rule in LOG_RULES)

RULES: Final[tuple[FailureRule, ...]] = (
    FailureRule(name="lease-lost", failure_class=INFRA, is_retryable=True, error_codes=("LEASE_LOST",)),
    FailureRule(
        name="runner-startup",
        failure_class=INFRA,
        is_retryable=True,
        error_codes=("RUNNER_STARTUP", "IMAGE_PULL", "CHECKOUT"),
    ),
    FailureRule(name="upload", failure_class=INFRA, is_retryable=True, error_codes=("UPLOAD",)),
    FailureRule(name="timed-out", failure_class=INFRA, is_retryable=True, error_codes=("TIMED_OUT",)),
    FailureRule(
        name="cache-or-registry",
        failure_class=TOOLING,
        is_retryable=True,
        error_codes=("CACHE_FETCH", "REGISTRY_FETCH"),
    ),
    FailureRule(name="bad-job-spec", failure_class=USER, is_retryable=False, error_codes=("BAD_SPEC",)),
    FailureRule(name="known-flaky-tests", failure_class=FLAKY, is_retryable=True, all_failed_tests_flaky=True),
    FailureRule(name="failed-tests", failure_class=USER, is_retryable=False, has_failed_tests=True),
    FailureRule(name="killed", failure_class=INFRA, is_retryable=True, signals=(9, 15)),
    FailureRule(name="killed:exit-code", failure_class=INFRA, is_retryable=True, exit_codes=(137, 143)),
    *LOG_RULES,
    FailureRule(name="tool-missing", failure_class=TOOLING, is_retryable=False, exit_codes=(126, 127)),
    FailureRule(name="failed", failure_class=USER, is_retryable=False),
)


def classify(facts: Facts, rules: Sequence[FailureRule] = RULES) -> Failure:
    """Return the failure with the class and retryability of the first rule that matches; USER if no rule does.

    The built-in rules for log lines count as one: of them, the rule for the line nearest to the end decides.
    """
    code = facts.error_code or ("SIGNAL" if facts.signal else "EXIT" if facts.exit_code else "FAILED")
    message = facts.message.partition("\n")[0][:MAX_LINE_CHARS]
    for is_log_rule, group in groupby(rules, key=lambda rule: rule.name in _LOG_RULE_NAMES):
        find_match = _nearest_match if is_log_rule else _first_match
        match = find_match(tuple(group), facts)
        if match is not None:
            rule, matched_line = match
            return Failure(
                code=code,
                failure_class=rule.failure_class,
                is_retryable=rule.is_retryable and rule.failure_class != USER,
                rule=rule.name,
                line=matched_line,
                message=message,
            )
    return Failure(code=code, failure_class=USER, is_retryable=False, rule="none", message=message)


def validation_failure(details: str) -> Failure:
    """Return the failure of an execution that succeeded with an invalid result; `details` names the failed rules."""
    return Failure(code="VALIDATION_FAILED", failure_class=USER, is_retryable=False, rule="validation", line=details)


def _first_match(rules: Iterable[FailureRule], facts: Facts) -> tuple[FailureRule, str] | None:
    """Return the first rule whose conditions all hold, and the log line that its pattern matched; empty if none."""
    for rule in rules:
        if _holds_without_log(rule, facts):
            match = _nearest_match((rule,), facts) if rule.log_pattern else (rule, "")
            if match is not None:
                return match
    return None


def _holds_without_log(rule: FailureRule, facts: Facts) -> bool:
    """Return whether all conditions of the rule hold, except for its pattern."""
    return not (
        (rule.error_codes and facts.error_code not in rule.error_codes)
        or (rule.signals and facts.signal not in rule.signals)
        or (rule.exit_codes and facts.exit_code not in rule.exit_codes)
        or (
            rule.all_failed_tests_flaky
            and not (facts.failed_tests and set(facts.failed_tests) <= set(facts.flaky_tests))
        )
        or (rule.has_failed_tests and not facts.failed_tests)
    )


def _nearest_match(rules: Sequence[FailureRule], facts: Facts) -> tuple[FailureRule, str] | None:
    """Return the line nearest to the end that a rule matches, with the first of its rules.

    A line shortly after one with a cause of class USER only explains that: it may quote source code or a difference.
    """
    nearest, remaining, is_at_end = None, MAX_EXPLANATION_LINES, True
    for text in reversed(facts.log_tail[-MAX_LOG_LINES:]):
        match = _match_text(rules, text)
        if match and match[0].failure_class == USER and (nearest is None or match[0].name != _WEAK_RULE):
            return match
        if nearest is None and match and (is_at_end or not match[0].name.startswith(_GENERAL_RULES)):
            nearest = match
        if nearest and (remaining := remaining - 1) < 0:
            break
        is_closing = match or _matching_excerpt(_CLOSING, text) or not any(map(str.isalnum, text))
        is_at_end = is_at_end and bool(is_closing)
    return nearest


def _match_text(rules: Sequence[FailureRule], text: str) -> tuple[FailureRule, str] | None:
    """Return the first rule that matches the text, and the part that it matches; None if the text is no evidence."""
    match = next(((rule, excerpt) for rule in rules if (excerpt := _matching_excerpt(rule.log_pattern, text))), None)
    return None if match and _is_no_evidence(match[0], text) else match


def _is_no_evidence(rule: FailureRule, text: str) -> bool:
    if rule.name not in _LOG_RULE_NAMES or rule.name == _SPECIFIC_RULE:
        return False
    is_local = rule.name.startswith(_GENERAL_RULES) and _matching_excerpt(LOCAL_ADDRESS, text)
    return bool(is_local or _matching_excerpt(_NO_EVIDENCE, text))


def matches_line(rule: FailureRule, line: str) -> bool:
    """Return whether the rule's pattern matches this line of a log."""
    return bool(rule.log_pattern and _matching_excerpt(rule.log_pattern, line))


def _matching_excerpt(pattern: str, text: str) -> str:
    """Return the beginning of the text if the pattern matches it, else its end if it matches that, else ""."""
    compiled_pattern = _compiled_pattern(pattern)
    searched_text = text if compiled_pattern.flags & re.IGNORECASE else text.lower()
    if compiled_pattern.search(searched_text[:MAX_LINE_CHARS]):
        return text[:MAX_LINE_CHARS]
    is_long = len(text) > MAX_LINE_CHARS
    return text[-MAX_LINE_CHARS:] if is_long and compiled_pattern.search(searched_text[-MAX_LINE_CHARS:]) else ""


@lru_cache(maxsize=256)
def _compiled_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern that ignores case. One in lower case has no flag: to search lower-cased text is much faster."""
    return re.compile(pattern, 0 if pattern == pattern.lower() else re.IGNORECASE)


def may_retry(failure: Failure, attempt_count: int, max_attempts: int, retry_on: Sequence[str] = ()) -> bool:
    """Return whether to retry: the failure is retryable, the job retries its class, and attempts remain.

    `attempt_count` counts those made so far. `retry_on` restricts the retryable classes and never extends them.
    """
    is_retried_class = not retry_on or failure.failure_class in retry_on
    return failure.is_retryable and is_retried_class and attempt_count < max_attempts


def is_worker_fault(failure_class: str, code: str) -> bool | None:
    """Return whether the worker's infrastructure caused a failure: only the worker itself can report that.

    None for another INFRA failure, whose cause is unknown: a job may have printed that the network was down.
    """
    if failure_class != INFRA:
        return False
    return True if code in WORKER_FAULT_CODES else None
