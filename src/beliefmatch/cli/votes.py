"""`beliefmatch votes`: which items are settled, which to ask about next, and what stopping early saves."""

from contextlib import ExitStack
from pathlib import Path

import typer

from beliefmatch._errors import fail
from beliefmatch._files import atomic_write, atomic_write_dir, directory_in_use, refuse_url
from beliefmatch._utils import require_name
from beliefmatch.cli import options as opt
from beliefmatch.cli.console import findings, require_packages, show, step_progress, user_errors, write_errors
from beliefmatch.experiments.votes_record import VotesConfig, VotesRecord

__all__ = ["votes"]

_DEFAULT = VotesConfig()


def votes(
    context: typer.Context,
    path: opt.VotesFile,
    predictions: opt.ItemPredictions = None,
    features: opt.ItemFeatures = None,
    panel: opt.PanelSize = _DEFAULT.panel,
    confidence: opt.MajorityConfidence = _DEFAULT.confidence,
    simulate: opt.Simulate = False,
    repetitions: opt.Repetitions = _DEFAULT.repetitions,
    seed: opt.ReplaySeed = _DEFAULT.seed,
    form: opt.VotesForm = "auto",
    item: opt.ItemColumn = None,
    annotator: opt.AnnotatorColumn = None,
    label: opt.VoteColumn = None,
    class_names: opt.ClassNames = None,
    repeats: opt.Repeats = False,
    dawid_skene: opt.DawidSkene = False,
    multiannotator: opt.Multiannotator = None,
    out: opt.OutDir = "runs/votes",
    verbose: opt.Verbose = False,
) -> None:
    """Decide by votes of annotators which items are settled.

    An item is settled when one class is, with --confidence, the majority of a panel of --panel votes, some of
    them known. Predictions or features of a model are the belief before any vote; without them it is one
    Dirichlet for all items, fitted to the votes. The directory holds items.csv with the consensus of every
    item and the order in which to ask, record.json, tables.md, and report.html, which works offline.
    """
    with ExitStack() as stack:
        with user_errors(context):
            refuse_url(out, caller="votes")
            refuse_url(multiannotator or "", caller="votes", argument="multiannotator")
            config = VotesConfig(**opt.settings_of(context))
            from beliefmatch.data.votes import FORMS, VoteColumns, cleanlab_table

            require_name("votes", "form", form, FORMS)
            if multiannotator is not None and (not multiannotator.strip() or Path(multiannotator).is_dir()):
                raise fail("votes", f"`multiannotator` must be a file to write, got {multiannotator!r}.")
            require_packages(context, "terminal", "report")
            from beliefmatch.data.predictions import read_class_names
            from beliefmatch.experiments.votes import (
                analyse_votes,
                item_rows,
                read_inputs,
                require_analysable,
            )

            names = None if class_names is None else read_class_names(class_names)
            given = read_inputs(
                path,
                form=form,  # pyright: ignore[reportArgumentType]  # one of FORMS
                columns=VoteColumns(item=item, annotator=annotator, label=label),
                class_names=names,
                repeats=repeats,
                predictions=predictions,
                features=features,
            )
            require_analysable(given, config, replay=simulate, dawid_skene=dawid_skene)
            exported = None
            if multiannotator is not None:
                exported = Path(multiannotator), cleanlab_table(given.votes)
                place = f"{exported[0].parent}"
                stack.enter_context(directory_in_use(place, caller="votes", argument="multiannotator"))
            directory = stack.enter_context(directory_in_use(out, caller="votes"))
        steps = 3 + (config.repetitions if simulate else 0)
        with step_progress(steps) as step:
            command = ["beliefmatch", *(context.obj or [])]
            record, table = analyse_votes(
                given, config, replay=simulate, dawid_skene=dawid_skene, command=command, on_step=step
            )
        from beliefmatch.report.table import to_rich
        from beliefmatch.report.votes import csv_file, stopping_table, votes_files, votes_page, votes_tables

        with write_errors(context, directory):
            atomic_write_dir(directory, votes_files(record, item_rows(given.votes, table)))
        if exported is not None:
            file, content = exported
            with write_errors(context, file, "--multiannotator"):
                atomic_write(file, csv_file(*content, for_spreadsheets=False))
        page = votes_page(record)
        show(findings([page.verdict, page.lead, _columns_read(record), *page.warnings, *page.advice]))
        shown = votes_tables(record) if verbose else [stopping_table(record)] if record.simulation else []
        for one in shown:
            show(to_rich(one))
        typer.echo(directory / "report.html")


def _columns_read(record: VotesRecord) -> str:
    """Which columns were taken for what: a mistake there changes every number."""
    roles = dict(record.recognised)
    unread = roles.pop("not read", None)
    read = "; ".join(f"{role} from {names}" for role, names in roles.items())
    rest = f"Not read: {unread}" if unread else "All were read"
    return f"Columns of the form {record.form}: {read}. {rest}."
