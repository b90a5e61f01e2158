"""Detect PHP projects: Composer, with PHPUnit, Pest or the scripts of composer.json."""

from __future__ import annotations

from typing import Any, Final

from deltaci.pipeline import model
from deltaci.pipeline.detect.proposals import LIKELY, SURE, UNSURE, Confidence, JobDraft, Project
from deltaci.pipeline.detect.tree import Folder, get_table

ECOSYSTEM: Final = "php"
MANIFEST: Final = "composer.json"
INSTALL: Final = "composer install --no-interaction --no-progress --prefer-dist"
LINTS: Final = ("lint", "cs", "cs:check", "cs-check", "check-style", "phpcs", "phpstan", "stan", "analyse", "psalm")


def reads_file(file_name: str, folder: str) -> bool:
    """Return whether the detection of PHP projects reads this file."""
    return file_name in (MANIFEST, "phpunit.xml", "phpunit.xml.dist")


def find(folder: Folder) -> Project | None:
    """Return the PHP project of the folder, or None if there is none."""
    if not folder.find_file(MANIFEST):
        return None
    composer_json = folder.json(MANIFEST)
    drafts = [*_test(folder, composer_json), *_lint(folder, composer_json)]
    unclear = () if drafts else ("there is composer.json, but no tests were detected",)
    return Project(ecosystem=ECOSYSTEM, folder=folder.path, drafts=tuple(drafts), unclear=unclear)


def _draft(
    folder: Folder,
    purpose: str,
    title: str,
    steps: tuple[str, ...],
    evidence: str,
    confidence: Confidence = SURE,
    uncertainty: str = "",
    artifacts: tuple[model.Artifact, ...] = (),
) -> JobDraft:
    lock_file = folder.from_root(folder.find_file("composer.lock") or MANIFEST)
    caches = (
        model.Cache(key="composer-{lock_hash}", paths=(folder.from_root(".cache/composer"),), lock_files=(lock_file,)),
    )
    return JobDraft(
        purpose=purpose,
        title=title,
        confidence=confidence,
        uncertainty=uncertainty,
        evidence=(evidence,),
        steps=(INSTALL, *steps),
        env={"COMPOSER_CACHE_DIR": ".cache/composer"},
        caches=caches,
        artifacts=artifacts,
    )


def _test(folder: Folder, composer_json: dict[str, Any]) -> list[JobDraft]:
    requirements = {**get_table(composer_json, "require"), **get_table(composer_json, "require-dev")}
    config_name = folder.find_file("phpunit.xml", "phpunit.xml.dist", "phpunit.dist.xml")
    report_artifacts = (model.Artifact(path=folder.from_root("test-results.xml"), type="junit"),)
    if folder.find_file("artisan") and folder.find_file(".env.example"):
        steps = ("cp .env.example .env", "php artisan key:generate", "php artisan test")
        return [_draft(folder, "test", "Laravel tests", steps, "there is artisan", LIKELY, "it may need a database")]
    if config_name and "pestphp/pest" in requirements:
        return [
            _draft(
                folder,
                "test",
                "PHP tests with Pest",
                ("vendor/bin/pest --log-junit test-results.xml",),
                "composer.json requires Pest",
                artifacts=report_artifacts,
            )
        ]
    if config_name and "phpunit/phpunit" in requirements:
        return [
            _draft(
                folder,
                "test",
                "PHP tests with PHPUnit",
                ("vendor/bin/phpunit --log-junit test-results.xml",),
                f"there is {config_name}, and composer.json requires PHPUnit",
                artifacts=report_artifacts,
            )
        ]
    if config_name and folder.find_file("phpunit"):
        return [
            _draft(
                folder,
                "test",
                "PHP tests with PHPUnit",
                ("php ./phpunit",),
                f"there are {config_name} and the script phpunit",
                LIKELY,
                "its dependencies are unknown",
            )
        ]
    if "test" in get_table(composer_json, "scripts"):
        return [_draft(folder, "test", "PHP tests", ("composer test",), "composer.json has the script 'test'")]
    if config_name:
        is_bridge = "symfony/phpunit-bridge" in requirements
        command = "vendor/bin/simple-phpunit" if is_bridge else "vendor/bin/phpunit"
        return [
            _draft(
                folder,
                "test",
                "PHP tests with PHPUnit",
                (command,),
                f"there is {config_name}",
                LIKELY if is_bridge else UNSURE,
                "composer.json does not require PHPUnit",
            )
        ]
    return []


def _lint(folder: Folder, composer_json: dict[str, Any]) -> list[JobDraft]:
    scripts, requirements = (
        get_table(composer_json, "scripts"),
        {**get_table(composer_json, "require"), **get_table(composer_json, "require-dev")},
    )
    script = next((script for script in LINTS if script in scripts), None)
    if script:
        return [
            _draft(
                folder,
                "lint",
                "PHP linter",
                (f"composer run-script {script}",),
                f"composer.json has the script {script!r}",
            )
        ]
    config_name = folder.find_file("phpstan.neon", "phpstan.neon.dist", "phpstan.dist.neon")
    if config_name and "phpstan/phpstan" in requirements:
        return [
            _draft(
                folder,
                "lint",
                "PHP analysis with PHPStan",
                ("vendor/bin/phpstan analyse --no-progress",),
                f"there is {config_name}",
            )
        ]
    return []
