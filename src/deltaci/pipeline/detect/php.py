"""PHP: Composer, then PHPUnit, Pest, or the scripts that composer.json declares."""

from __future__ import annotations

from typing import Any, Final

from deltaci.pipeline import model
from deltaci.pipeline.detect.findings import LIKELY, SURE, UNSURE, Confidence, Draft, Project
from deltaci.pipeline.detect.tree import Place, table

ECOSYSTEM: Final = "php"
MANIFEST: Final = "composer.json"
INSTALL: Final = "composer install --no-interaction --no-progress --prefer-dist"
LINTS: Final = ("lint", "cs", "cs:check", "cs-check", "check-style", "phpcs", "phpstan", "stan", "analyse", "psalm")


def wants(name: str, folder: str) -> bool:
    """Whether a file says something about a PHP project."""
    return name in (MANIFEST, "phpunit.xml", "phpunit.xml.dist")


def find(place: Place) -> Project | None:
    """The package or application of this folder, if there is one."""
    if not place.has(MANIFEST):
        return None
    composer = place.json(MANIFEST)
    drafts = [*_test(place, composer), *_lint(place, composer)]
    unclear = () if drafts else ("there is composer.json, but nothing that looks like tests",)
    return Project(ecosystem=ECOSYSTEM, folder=place.folder, drafts=tuple(drafts), unclear=unclear)


def _draft(
    place: Place,
    task: str,
    what: str,
    steps: tuple[str, ...],
    evidence: str,
    confidence: Confidence = SURE,
    reason: str = "",
    artifacts: tuple[model.Artifact, ...] = (),
) -> Draft:
    lock = place.path(place.has("composer.lock") or MANIFEST)
    caches = (model.Cache(key="composer-{lock_hash}", paths=(place.path(".cache/composer"),), lock_files=(lock,)),)
    return Draft(
        task=task,
        what=what,
        confidence=confidence,
        reason=reason,
        evidence=(evidence,),
        steps=(INSTALL, *steps),
        env={"COMPOSER_CACHE_DIR": ".cache/composer"},
        caches=caches,
        artifacts=artifacts,
    )


def _test(place: Place, composer: dict[str, Any]) -> list[Draft]:
    wants = {**table(composer, "require"), **table(composer, "require-dev")}
    config = place.has("phpunit.xml", "phpunit.xml.dist", "phpunit.dist.xml")
    report = (model.Artifact(path=place.path("test-results.xml"), type="junit"),)
    if place.has("artisan") and place.has(".env.example"):
        steps = ("cp .env.example .env", "php artisan key:generate", "php artisan test")
        return [_draft(place, "test", "Laravel tests", steps, "there is artisan", LIKELY, "it may want a database")]
    if config and "pestphp/pest" in wants:
        return [
            _draft(
                place,
                "test",
                "PHP tests with Pest",
                ("vendor/bin/pest --log-junit test-results.xml",),
                "composer.json requires Pest",
                artifacts=report,
            )
        ]
    if config and "phpunit/phpunit" in wants:
        return [
            _draft(
                place,
                "test",
                "PHP tests with PHPUnit",
                ("vendor/bin/phpunit --log-junit test-results.xml",),
                f"there is {config}, and composer.json requires PHPUnit",
                artifacts=report,
            )
        ]
    if config and place.has("phpunit"):
        return [
            _draft(
                place,
                "test",
                "PHP tests with PHPUnit",
                ("php ./phpunit",),
                f"there are {config} and the script phpunit",
                LIKELY,
                "what it needs is not to be seen",
            )
        ]
    if "test" in table(composer, "scripts"):
        return [_draft(place, "test", "PHP tests", ("composer test",), "composer.json has the script 'test'")]
    if config:
        is_bridge = "symfony/phpunit-bridge" in wants
        command = "vendor/bin/simple-phpunit" if is_bridge else "vendor/bin/phpunit"
        return [
            _draft(
                place,
                "test",
                "PHP tests with PHPUnit",
                (command,),
                f"there is {config}",
                LIKELY if is_bridge else UNSURE,
                "composer.json does not require PHPUnit",
            )
        ]
    return []


def _lint(place: Place, composer: dict[str, Any]) -> list[Draft]:
    scripts, wants = table(composer, "scripts"), {**table(composer, "require"), **table(composer, "require-dev")}
    name = next((each for each in LINTS if each in scripts), None)
    if name:
        return [
            _draft(
                place, "lint", "PHP linter", (f"composer run-script {name}",), f"composer.json has the script {name!r}"
            )
        ]
    config = place.has("phpstan.neon", "phpstan.neon.dist", "phpstan.dist.neon")
    if config and "phpstan/phpstan" in wants:
        return [
            _draft(
                place,
                "lint",
                "PHP analysis with PHPStan",
                ("vendor/bin/phpstan analyse --no-progress",),
                f"there is {config}",
            )
        ]
    return []
