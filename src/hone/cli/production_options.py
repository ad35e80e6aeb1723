"""Commands about decisions in production, as data: the log, estimates, rollouts."""

from typing import Final

from hone.cli.command_spec import CommandOption, CommandSpec

JOIN_OPTIONS: Final = (
    CommandOption(flag="--tenant", metavar="NAME", help="one tenant (default: the only one)"),
    CommandOption(flag="--as-of", metavar="TIME", help="seconds or 2026-11-23T12:00:00Z (default: now)"),
    CommandOption(flag="--window", metavar="SECONDS", help="time in which outcomes count (default: 86400)"),
    CommandOption(flag="--rule", metavar="RULE", help="sum (default), first, last or max of the outcomes"),
    CommandOption(flag="--default", metavar="X", help="reward of a closed window without outcome (default: 0)"),
    CommandOption(flag="--kind", metavar="NAME", help="kind of outcomes that are rewards (default: reward)"),
    CommandOption(flag="--schema", metavar="HASH", help="decisions of this schema (default: the only one)"),
)
"""How outcomes join their decisions; read by `hone.cli.join_options`."""

PRODUCTION_COMMANDS: Final[tuple[CommandSpec, ...]] = (
    CommandSpec(
        name="estimate",
        summary="estimate the value of policies from a log, before they are deployed",
        module="hone.cli.commands.estimate",
        positionals=(("log", "a log (decisions.db, postgresql://, redis://), or a view's folder or .parquet file"),),
        options=(
            CommandOption(
                flag="--policy", metavar="DIR", repeated=True, help="a candidate: a policy's folder, checkpoint or run"
            ),
            CommandOption(
                flag="--estimator", metavar="NAME", default="dr",
                help="it decides: ips, snips, clipped, dm, dr (default), sndr, switch or mrdr; others stand beside it",
            ),
            CommandOption(flag="--compare", help="differences of all candidates, and their order"),
            CommandOption(
                flag="--segment", metavar="NAME", default="choice",
                help="choice (the candidate's likeliest action, default), version, route or feature:N",
            ),
            CommandOption(
                flag="--interval", metavar="KIND", default="normal", help="normal (default), bernstein or bootstrap"
            ),
            CommandOption(flag="--level", metavar="P", default="0.95", help="level of the intervals (default: 0.95)"),
            CommandOption(
                flag="--reward-model", metavar="KIND", default="ridge", help="ridge (default), or logistic for 0 and 1"
            ),
            CommandOption(
                flag="--behaviour", metavar="DIR", help="the policy that wrote the log: support is then exact"
            ),
            CommandOption(
                flag="--since", metavar="TIME", help="leave out decisions before: those that a candidate learnt from"
            ),
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
