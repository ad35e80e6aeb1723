"""`hone retrain`: jobs carried out, shown, refused by name; a candidate is shipped by its version."""

import json
from pathlib import Path

import pytest

from hone.cli.main import main
from hone.core.decisions import Evidence
from hone.decide.bandits.greedy import EpsilonGreedyPolicy
from hone.decide.bandits.models import BetaBernoulliPosterior
from hone.decide.bandits.saving import save_policy
from hone.decide.monitor.retraining import JobQueue, QueuedJob, RetrainParts, RetrainResult
from hone.decide.registry import VersionOrigin

SHOP = """
[service]
actions = ["a", "b"]
[monitor]
act = "retrain"
[monitor.retrain]
config = "train.toml"
log_key = "log.path"
"""


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobQueue:
    monkeypatch.chdir(tmp_path)
    Path("shop.toml").write_text(SHOP)
    Path("train.toml").write_text('recipe = "linucb"\nsteps = 1\n')
    Path("shop").mkdir()
    made = JobQueue(tmp_path / "shop" / "jobs.db")
    made.submit("j1", tenant="default", work={"since_s": "0.0", "words": "drift"}, at_s=1.0)
    return made


def retrain(*arguments: str) -> int:
    return main(["retrain", "shop.toml", *arguments])


def test_a_job_is_carried_out_and_its_candidate_shipped_by_name(
    queue: JobQueue, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(parts: RetrainParts, job: QueuedJob, **_: object) -> RetrainResult:
        assert parts.config.config == "train.toml"
        save_policy(EpsilonGreedyPolicy(BetaBernoulliPosterior(2), 0.1), Path("candidate"))
        version = parts.registry.add(Path("candidate"), VersionOrigin(), at_s=1.0, made_by=job.id).id
        row = Evidence(kind="paired", verdict="ok", words="better", made_by=job.id, at_s=1.0)
        return RetrainResult(version=version, evidence=(row,))

    monkeypatch.setattr(RetrainParts, "retrain", trained)
    assert retrain("--once") == 0
    (done,) = queue.jobs()
    version = done.result["version"]
    assert f"may be shipped; hone ship {version} --to shop.toml" in " ".join(capsys.readouterr().out.split())
    assert retrain("--once") == 0
    assert "no job waits" in capsys.readouterr().out
    assert retrain("--status", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["asked_because"], row["result"]["version"]) == ("done", "drift", version)
    assert main(["ship", version, "--to", "shop.toml", "--dry-run"]) == 0
    assert f"version {version} beside" in " ".join(capsys.readouterr().out.split())


def test_a_job_that_fails_is_exit_code_3_and_named_in_the_status(
    queue: JobQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    assert retrain("--once") == 3
    told = " ".join(capsys.readouterr().out.split())
    assert "job j1 of tenant default, attempt 1: failed: " in told
    assert retrain("--status") == 0
    assert "failed" in capsys.readouterr().out


def test_wrong_calls_are_refused_before_a_job_is_claimed(queue: JobQueue, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (("--once", "--status"), "exclude each other"),
        (("--json",), "--json is for --status"),
    ):
        assert retrain(*arguments) == 2
        assert words in capsys.readouterr().err
    Path("train.toml").unlink()
    assert retrain("--once") == 2
    assert "monitor.retrain.config 'train.toml' is no file" in capsys.readouterr().err
    Path("shop.toml").write_text("[service]\n")
    assert retrain() == 2
    assert "no table [monitor.retrain]" in capsys.readouterr().err
    assert [job.state for job in queue.jobs()] == ["queued"]


@pytest.mark.parametrize(
    ("service", "run", "words"),
    [
        ("", 'recipe = "linucb"\nsteps = 1\nstepz = 2\n', "unknown key stepz in train.toml:3"),
        ("", 'recipe = "nothing"\nsteps = 1\n', 'recipe = "nothing" in train.toml:1 is not known'),
        ("", "recipe = [\n", "train.toml"),
        ("", 'recipe = "linucb"\n', "steps in train.toml is missing"),
        ('log_key = "log"', 'recipe = "linucb"\nsteps = 1\n', "log in monitor.retrain.log_key 'log' must be a table"),
        ('log_key = "logg.path"', 'recipe = "linucb"\nsteps = 1\n', "unknown key logg"),
        ("", 'recipe = "linucb"\nsteps = 1\n[arms]\nkind = "linear"\n', "train.toml"),
        ("", 'recipe = "ppo"\nsteps = 1\n', "unknown key log"),
        ('config = "gone.toml"', "", "monitor.retrain.config 'gone.toml' is no file"),
    ],
)
def test_the_plan_of_a_service_refuses_a_config_that_no_job_could_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], service: str, run: str, words: str
) -> None:
    text = SHOP
    if service:
        key = service.partition(" ")[0]
        text = "".join(service + "\n" if line.startswith(key) else line for line in SHOP.splitlines(keepends=True))
    client = '[[service.clients]]\nname = "web"\ntoken_env = "NO_SUCH_TOKEN"\n'
    (tmp_path / "shop.toml").write_text(text + client)
    (tmp_path / "train.toml").write_text(run)
    assert main(["serve", str(tmp_path / "shop.toml"), "--dry-run"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "shop.toml:7: monitor.retrain" in told and words in told, told
    assert "client 'web': the environment variable NO_SUCH_TOKEN is not set" in told, "all faults at once"


@pytest.mark.parametrize("service", ['features = ["age"]', 'action_features = ["price"]\nfeatures = ["age"]'])
def test_the_plan_names_the_run_that_retrains(tmp_path: Path, capsys: pytest.CaptureFixture[str], service: str) -> None:
    (tmp_path / "shop.toml").write_text(SHOP.replace('actions = ["a", "b"]', f'actions = ["a", "b"]\n{service}'))
    joint = '[model]\nkind = "joint"\n' if "action_features" in service else ""
    (tmp_path / "train.toml").write_text(f'recipe = "linucb"\nsteps = 1\n{joint}')
    assert main(["serve", str(tmp_path / "shop.toml"), "--dry-run"]) == 0
    assert "retrain    train.toml, linucb; a job waits for 4000 rewards" in capsys.readouterr().out
