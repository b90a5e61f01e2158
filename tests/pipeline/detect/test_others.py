"""Detection of ecosystems other than Python and Node, and of repositories with several projects."""

from __future__ import annotations

import pytest

from deltaci.core.errors import Refused
from deltaci.pipeline.detect import detect_pipeline
from deltaci.pipeline.detect.projects import MAX_PROJECTS
from tests.pipeline.detect.trees import PACKAGE, PYTEST, jobs, package, proposed, steps

GO = {"go.mod": "module x\n\ngo 1.23\n", "a.go": "", "a_test.go": ""}
CRATE = '[package]\nname = "x"\n'
MVN = "-B -ntp verify"
CTEST = "ctest --test-dir _build --output-on-failure --output-junit test-results.xml"
HEX = "mix local.hex --force"
C = {f"src/{name}.c": "" for name in "abcdefghijkl"}
FORMS = "<UseWindowsForms>true</UseWindowsForms>"

# Description: files, and the expected confidence and last command of each job.
REPOSITORIES: dict[str, tuple[dict[str, str], dict[str, tuple[str, str]]]] = {
    "Go": (GO, {"build": ("sure", "go vet ./..."), "test": ("sure", "go test ./...")}),
    "Go without tests": ({"go.mod": "", "a.go": ""}, {"build": ("sure", "go vet ./...")}),
    "Go with a linter": (
        {"go.mod": "", "a.go": "", ".golangci.yml": 'version: "2"\n'},
        {
            "build": ("sure", "go vet ./..."),
            "lint": ("likely", "go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@latest run"),
        },
    ),
    "Go with tests of its own": (
        GO | {"Makefile": "check test:\n\t./hack/test.sh\n"},
        {"build": ("sure", "go vet ./..."), "test": ("likely", "go test ./...")},
    ),
    "Go with make": (
        GO | {"Makefile": "test: vet\n\t$(GO) test -race ./...\nvet:\n\tgo vet\n"},
        {"build": ("sure", "go vet ./..."), "test": ("sure", "go test ./...")},
    ),
    "Rust": (
        {"Cargo.toml": CRATE, "src/lib.rs": "", "rustfmt.toml": "max_width = 100\n", "clippy.toml": ""},
        {
            "build": ("sure", "cargo build"),
            "test": ("sure", "cargo test"),
            "format": ("sure", "cargo fmt --all --check"),
            "clippy": ("sure", "cargo clippy"),
        },
    ),
    "a Rust workspace": (
        {"Cargo.toml": '[workspace]\nmembers = ["a"]\n', "a/Cargo.toml": CRATE, "rustfmt.toml": "wrap_comments = 1\n"},
        {
            "build": ("likely", "cargo build --workspace"),
            "test": ("likely", "cargo test --workspace"),
            "format": ("unsure", "cargo +nightly fmt --all --check"),
            "clippy": ("likely", "cargo clippy --workspace"),
        },
    ),
    "Maven": ({"pom.xml": ""}, {"test": ("sure", f"mvn {MVN}")}),
    "Maven's wrapper": ({"pom.xml": "", "mvnw": "", "a/pom.xml": ""}, {"test": ("sure", f"sh ./mvnw {MVN}")}),
    "Gradle": ({"build.gradle": ""}, {"test": ("likely", "gradle --no-daemon build")}),
    "Gradle's wrapper": (
        {"settings.gradle.kts": "", "gradlew": "", "app/build.gradle.kts": ""},
        {"test": ("sure", "sh ./gradlew --no-daemon build")},
    ),
    "Android": (
        {"build.gradle": "id 'com.android.application'", "gradlew": ""},
        {"test": ("likely", "sh ./gradlew --no-daemon build")},
    ),
    "both": ({"pom.xml": "", "build.gradle": "", "gradlew": ""}, {"test": ("sure", "sh ./gradlew --no-daemon build")}),
    ".NET": (
        {"X.sln": "", "src/X/X.csproj": "<TargetFramework>net8.0</TargetFramework>", "test/X.Tests/X.Tests.csproj": ""},
        {"build": ("sure", "dotnet build X.sln --no-restore"), "test": ("sure", "dotnet test X.sln --no-restore")},
    ),
    ".NET for several": (
        {"X.slnx": "", "X/X.csproj": "<TargetFrameworks>net8.0;net472</TargetFrameworks>"},
        {"build": ("likely", "dotnet build X.slnx --no-restore")},
    ),
    ".NET for Windows": ({"X.csproj": FORMS}, {"build": ("unsure", "dotnet build X.csproj --no-restore")}),
    "RSpec": (
        {"Gemfile": "gem 'rspec'", "spec/a_spec.rb": "", ".rubocop.yml": ""},
        {"test": ("sure", "bundle exec rspec"), "lint": ("likely", "bundle exec rubocop")},
    ),
    "Rake": (
        {"Gemfile": "gemspec", "Rakefile": "Rake::TestTask.new(:test)", "a.gemspec": ""},
        {"test": ("sure", "bundle exec rake test")},
    ),
    "Rails": (
        {"Gemfile": "gem 'rails'", "bin/rails": "", "config/application.rb": "", "Rakefile": ""},
        {"test": ("likely", "bundle exec ruby bin/rails test")},
    ),
    "PHPUnit": (
        {"composer.json": '{"require-dev": {"phpunit/phpunit": "*"}}', "phpunit.xml.dist": ""},
        {"test": ("sure", "vendor/bin/phpunit --log-junit test-results.xml")},
    ),
    "Composer's script": (
        {"composer.json": '{"scripts": {"test": "x", "phpstan": "y"}}'},
        {"test": ("sure", "composer test"), "lint": ("sure", "composer run-script phpstan")},
    ),
    "Laravel": (
        {"composer.json": "{}", "artisan": "", ".env.example": "", "phpunit.xml": ""},
        {"test": ("likely", "php artisan test")},
    ),
    "CMake": ({"CMakeLists.txt": "project(x)\nenable_testing()\n"}, {"test": ("likely", CTEST)}),
    "CMake without tests": (
        {"CMakeLists.txt": "project(x)\n"},
        {"build": ("likely", "cmake --build _build --parallel")},
    ),
    "CMake behind make": (
        {"CMakeLists.txt": "project(x)\n", "Makefile": "all:\n\tcmake\ntest: all\n\tx\n"},
        {"test": ("likely", "make test")},
    ),
    "Meson": ({"meson.build": "project('x', 'c')\n"}, {"test": ("likely", "meson test -C _build --print-errorlogs")}),
    "autotools": ({"configure.ac": "", "Makefile.am": "TESTS = a\n"}, {"test": ("likely", "make check")}),
    "autotools without tests": ({"configure.ac": "", "autogen.sh": ""}, {"build": ("likely", "make")}),
    "a configure script": (
        {"configure": "", "Makefile.in": "all:\ntest: all\n"},
        {"test": ("likely", "make test")},
    ),
    "Go itself": ({"src/go.mod": "module std\n", "src/a.go": ""}, {}),
    "Elixir": (
        {"mix.exs": "", "test/a_test.exs": "", ".formatter.exs": ""},
        {
            "build": ("sure", "mix compile"),
            "test": ("likely", "mix test"),
            "format": ("sure", "mix format --check-formatted"),
        },
    ),
    "Swift": ({"Package.swift": "", "Tests/A.swift": ""}, {"test": ("likely", "swift test")}),
    "Make": (
        {"Makefile": "all: x\nx:\n\tcc\ntest: x\n\t./x\nlint:\n\tx\n"},
        {"test": ("likely", "make test"), "lint": ("likely", "make lint")},
    ),
    "Make without targets": ({"Makefile": "x: x.c\n\tcc\n"}, {"build": ("unsure", "make")}),
    "Make that passes everything on": (
        {"Makefile": "default: all\n.DEFAULT:\n\tcd src && $(MAKE) $@\n", "src/Makefile": "all:\ntest: all\n"},
        {"test": ("likely", "make test")},
    ),
    "just": ({"justfile": "default:\n  x\ntest *ARGS: build\n  y\n"}, {"test": ("likely", "just test")}),
    "task": ({"Taskfile.yml": "version: '3'\ntasks:\n  test:\n    cmds: [x]\n"}, {"test": ("likely", "task test")}),
    "mostly C": (
        C | {"Makefile": "all:\ntest: all\n", "Cargo.toml": CRATE, "lib.rs": ""},
        {
            "build": ("unsure", "cargo build"),
            "rust-test": ("unsure", "cargo test"),
            "format": ("unsure", "cargo fmt --all --check"),
            "clippy": ("unsure", "cargo clippy"),
            "make-test": ("likely", "make test"),
        },
    ),
    "nothing": ({"README.md": "", "a.sh": ""}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REPOSITORIES))
def test_a_repository_gets_the_standard_jobs_of_its_ecosystem(name: str) -> None:
    """The jobs are compared completely."""
    files, expected = REPOSITORIES[name]

    assert jobs(files) == expected


def test_job_ids_of_two_ecosystems_in_one_folder_are_distinct() -> None:
    """The ecosystem is part of the id only where the ids would otherwise be equal."""
    files = {"pyproject.toml": PACKAGE + PYTEST, "tests/test_a.py": "", "package.json": package({"test": "jest"})}

    assert set(jobs(files)) == {"build", "python-test", "node-test"}


def test_projects_in_folders_have_jobs_of_their_own() -> None:
    """Each job runs in the folder of its project, if files there or at the root have changed."""
    files = {
        "services/api/pyproject.toml": PACKAGE + PYTEST,
        "services/api/tests/test_a.py": "",
        "apps/web/package.json": package({"test": "jest"}),
        "apps/web/package-lock.json": "",
    }
    proposed_jobs = {proposed_job.id: proposed_job for proposed_job in proposed(files).proposed_jobs}

    assert set(proposed_jobs) == {"services-api-build", "services-api-test", "apps-web-test"}
    job = proposed_jobs["apps-web-test"].job
    assert job.defaults.run.working_directory == "apps/web"
    assert job.paths == ("apps/web/**", "*")
    assert (job.caches[0].paths, job.caches[0].lock_files) == (("apps/web/.npm",), ("apps/web/package-lock.json",))
    assert proposed_jobs["services-api-test"].job.artifacts[0].path == "services/api/test-results.xml"


def test_a_project_that_refers_to_a_sibling_folder_always_runs() -> None:
    """A change there may affect it, and skipping a required job is worse than running an unnecessary one."""
    files = {"a/go.mod": "module a\nreplace b => ../b\n", "a/a.go": "", "b/go.mod": "module b\n", "b/b.go": ""}
    path_filters = {proposed_job.id: proposed_job.job.paths for proposed_job in proposed(files).proposed_jobs}

    assert path_filters == {"a-build": None, "b-build": ("b/**", "*")}


@pytest.mark.parametrize(("native_folder", "node_folder"), [("a", "b"), ("b", "a")])
def test_projects_beside_each_other_are_found_in_any_order(native_folder: str, node_folder: str) -> None:
    """Only a project inside another one may belong to it, whatever the names of the folders are."""
    files = {
        f"{native_folder}/CMakeLists.txt": "project(x)\n",
        f"{native_folder}/x.c": "",
        f"{node_folder}/package.json": package({"test": "jest"}),
    }

    assert jobs(files).keys() == {f"{native_folder}-build", f"{node_folder}-test"}


def test_a_project_inside_another_one_is_a_guess_unless_its_folder_is_a_usual_one() -> None:
    """It may be a part of the outer project."""
    files = GO | {"weird/package.json": package({"test": "jest"}), "ui/package.json": package({"test": "jest"})}

    assert {job: summary[0] for job, summary in jobs(files).items()} == {
        "build": "sure",
        "test": "sure",
        "ui-test": "sure",
        "weird-test": "unsure",
    }


@pytest.mark.parametrize("folder", ["examples/a", "docs", "node_modules/a", "vendor/a", "test/fixtures/a", ".hidden"])
def test_examples_documentation_and_third_party_code_are_skipped(folder: str) -> None:
    """A message reports that they exist."""
    proposal = proposed(GO | {f"{folder}/package.json": package({"test": "jest"})})

    assert {proposed_job.id for proposed_job in proposal.proposed_jobs} == {"build", "test"}
    assert any("1 more folder" in message for message in proposal.unclear)


def test_the_number_of_projects_is_limited() -> None:
    """A repository with a thousand packages must not get a thousand jobs."""
    files = {f"packages/p{number:03}/go.mod": "" for number in range(100)}
    proposal = proposed(files | {f"packages/p{number:03}/a.go": "" for number in range(100)})

    assert len(proposal.proposed_jobs) == MAX_PROJECTS
    assert any(f"at most {MAX_PROJECTS}" in message for message in proposal.unclear)


def test_submodules_are_fetched_first() -> None:
    """The checkout does not include submodules."""
    files = {".gitmodules": "", "Cargo.toml": CRATE}

    assert steps(files, "test") == ["git submodule update --init --recursive", "cargo test"]
    assert jobs(files)["test"][0] == "likely"


def test_the_configure_script_runs_before_make() -> None:
    """The Makefile needs its results."""
    files = {"configure": "", "Makefile": "all:\ntest: all\n"}

    assert steps(files, "test") == ["sh ./configure", "make", "make test"]


def test_unsure_jobs_are_not_part_of_the_pipeline() -> None:
    """They are only shown."""
    proposal = proposed(REPOSITORIES["a Rust workspace"][0])

    assert proposal.pipeline is not None
    assert set(proposal.pipeline.jobs) == {"build", "test", "clippy"}


def test_every_job_may_use_the_network() -> None:
    """The jobs have to download dependencies."""
    assert all(
        proposed_job.job.network for files, _ in REPOSITORIES.values() for proposed_job in proposed(files).proposed_jobs
    )


def test_detection_returns_a_pipeline_or_refuses_with_a_reason() -> None:
    """The planner calls it for a repository without a pipeline file."""
    texts: dict[str, str | None] = {"go.mod": "module x", "a.go": ""}

    assert set(detect_pipeline(texts, texts).jobs) == {"build"}
    with pytest.raises(Refused, match=r"no pipeline file.*deltaci init"):
        detect_pipeline(["README.md"], {})
    with pytest.raises(Refused, match=r"possible jobs: \.NET build"):
        detect_pipeline(["X.csproj"], {"X.csproj": FORMS})
