"""Java and Kotlin: Maven or Gradle, by their wrappers where there are any."""

from __future__ import annotations

import re
from typing import Final

from deltaci.pipeline import model
from deltaci.pipeline.detect.findings import LIKELY, SURE, UNSURE, Confidence, Draft, Project
from deltaci.pipeline.detect.tree import Place

ECOSYSTEM: Final = "java"
MAVEN: Final = "pom.xml"
GRADLE: Final = ("settings.gradle", "settings.gradle.kts", "build.gradle", "build.gradle.kts")
ANDROID: Final = re.compile(r"com\.android\.(application|library|tools\.build)|libs\.plugins\.android|AndroidManifest")


def wants(name: str, folder: str) -> bool:
    """Whether a file says something about a Java project."""
    return name in (MAVEN, *GRADLE) or name == "libs.versions.toml"


def find(place: Place) -> Project | None:
    """The Maven or Gradle build of this folder. Where both are, the one with a wrapper; else Maven."""
    gradle = place.has(*GRADLE)
    is_maven = place.has(MAVEN) is not None
    drafts: tuple[Draft, ...] = ()
    unclear: tuple[str, ...] = ()
    if gradle and (not is_maven or (place.has("gradlew") and not place.has("mvnw"))):
        drafts = (_gradle(place, gradle),)
        unclear = ("pom.xml is there too; Gradle has a wrapper, so Gradle is taken",) if is_maven else ()
    elif is_maven:
        drafts = (_maven(place),)
        unclear = (f"{gradle} is there too; Maven is taken",) if gradle else ()
    return Project(ecosystem=ECOSYSTEM, folder=place.folder, drafts=drafts, unclear=unclear) if drafts else None


def _maven(place: Place) -> Draft:
    wrapper = place.has("mvnw")
    has_toolchains = "maven-toolchains-plugin" in place.text(MAVEN)
    return Draft(
        task="test",
        what="Maven build with tests",
        confidence=LIKELY if has_toolchains else SURE,
        reason="pom.xml asks for certain JDKs by toolchains" if has_toolchains else "",
        evidence=("there is pom.xml", *(("there is the wrapper mvnw",) if wrapper else ())),
        # By `sh`: whether the wrapper may be executed is not to be seen from its name.
        steps=(f"{'sh ./mvnw' if wrapper else 'mvn'} -B -ntp verify",),
        artifacts=(model.Artifact(path=place.path("**/target/surefire-reports/TEST-*.xml"), type="junit"),),
    )


def _gradle(place: Place, config: str) -> Draft:
    wrapper = place.has("gradlew")
    said = "".join(place.text(each) for each in (*GRADLE, "gradle/libs.versions.toml"))
    is_android = ANDROID.search(said) is not None or place.any(r"(?:.*/)?src/main/AndroidManifest\.xml") is not None
    confidence: Confidence = SURE if wrapper else LIKELY
    reason = "" if wrapper else "there is no wrapper, so the version of Gradle is a guess"
    if is_android:
        confidence, reason = LIKELY if wrapper else UNSURE, "it is an Android project: the machine must have its SDK"
    return Draft(
        task="test",
        what="Gradle build with tests",
        confidence=confidence,
        reason=reason,
        evidence=(f"there is {config}", *(("there is the wrapper gradlew",) if wrapper else ())),
        steps=(f"{'sh ./gradlew' if wrapper else 'gradle'} --no-daemon build",),
        artifacts=(model.Artifact(path=place.path("**/build/test-results/**/TEST-*.xml"), type="junit"),),
    )
