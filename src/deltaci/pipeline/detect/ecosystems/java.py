"""Detect Java and Kotlin builds: Maven or Gradle, started through their wrapper script if there is one."""

from __future__ import annotations

import re
from typing import Final

from deltaci.pipeline import model
from deltaci.pipeline.detect.proposals import LIKELY, SURE, UNSURE, Confidence, JobDraft, Project
from deltaci.pipeline.detect.tree import Folder

ECOSYSTEM: Final = "java"
MAVEN: Final = "pom.xml"
GRADLE: Final = ("settings.gradle", "settings.gradle.kts", "build.gradle", "build.gradle.kts")
ANDROID: Final = re.compile(r"com\.android\.(application|library|tools\.build)|libs\.plugins\.android|AndroidManifest")


def reads_file(file_name: str, folder: str) -> bool:
    """Return whether the detection of Java projects reads this file."""
    return file_name in (MAVEN, *GRADLE) or file_name == "libs.versions.toml"


def find(folder: Folder) -> Project | None:
    """Return the Maven or Gradle build of the folder, or None if there is neither.

    If there are both, Gradle is used only where it has a wrapper and Maven has none.
    """
    gradle_file = folder.find_file(*GRADLE)
    is_maven = folder.find_file(MAVEN) is not None
    drafts: tuple[JobDraft, ...] = ()
    unclear: tuple[str, ...] = ()
    if gradle_file and (not is_maven or (folder.find_file("gradlew") and not folder.find_file("mvnw"))):
        drafts = (_gradle(folder, gradle_file),)
        unclear = ("there is pom.xml too; Gradle is used because it has a wrapper",) if is_maven else ()
    elif is_maven:
        drafts = (_maven(folder),)
        unclear = (f"there is {gradle_file} too; Maven is used",) if gradle_file else ()
    return Project(ecosystem=ECOSYSTEM, folder=folder.path, drafts=drafts, unclear=unclear) if drafts else None


def _maven(folder: Folder) -> JobDraft:
    wrapper = folder.find_file("mvnw")
    has_toolchains = "maven-toolchains-plugin" in folder.text(MAVEN)
    return JobDraft(
        purpose="test",
        title="Maven build with tests",
        confidence=LIKELY if has_toolchains else SURE,
        uncertainty="pom.xml requires certain JDKs through toolchains" if has_toolchains else "",
        evidence=("there is pom.xml", *(("there is the wrapper mvnw",) if wrapper else ())),
        # Started with `sh`, because the file list does not show whether the wrapper is executable.
        steps=(f"{'sh ./mvnw' if wrapper else 'mvn'} -B -ntp verify",),
        artifacts=(model.Artifact(path=folder.from_root("**/target/surefire-reports/TEST-*.xml"), type="junit"),),
    )


def _gradle(folder: Folder, config_name: str) -> JobDraft:
    wrapper = folder.find_file("gradlew")
    build_text = "".join(folder.text(file_path) for file_path in (*GRADLE, "gradle/libs.versions.toml"))
    is_android = (
        ANDROID.search(build_text) is not None
        or folder.first_match(r"(?:.*/)?src/main/AndroidManifest\.xml") is not None
    )
    confidence: Confidence = SURE if wrapper else LIKELY
    uncertainty = "" if wrapper else "there is no wrapper, so the required version of Gradle is unknown"
    if is_android:
        confidence, uncertainty = (
            LIKELY if wrapper else UNSURE,
            "it is an Android project: the runner must have the Android SDK",
        )
    return JobDraft(
        purpose="test",
        title="Gradle build with tests",
        confidence=confidence,
        uncertainty=uncertainty,
        evidence=(f"there is {config_name}", *(("there is the wrapper gradlew",) if wrapper else ())),
        steps=(f"{'sh ./gradlew' if wrapper else 'gradle'} --no-daemon build",),
        artifacts=(model.Artifact(path=folder.from_root("**/build/test-results/**/TEST-*.xml"), type="junit"),),
    )
