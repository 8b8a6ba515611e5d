"""`kraftpy log dump|verify|truncate|recover`: the files of a stopped node."""

from __future__ import annotations

from pathlib import Path

import click

from kraftpy.cli.output import Failure, at_terminal, json_line, progress_bar, say, write_lines

directory = click.Path(exists=True, file_okay=False, path_type=Path)
existing = click.Path(exists=True, path_type=Path)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON lines, as in a pipe.")


@click.group()
def log() -> None:
    """Inspect and repair the files of a stopped node. Refuses if the node is running; use a copy then."""


@log.command()
@click.argument("paths", type=existing, nargs=-1, required=True, metavar="PATH...")
@click.option("--records", "-r", "with_records", is_flag=True, help="Show the records of each batch, too.")
@click.option("--from-offset", type=click.IntRange(min=0), default=0, help="Skip batches below this offset.")
@click.option("--max-batches", type=click.IntRange(min=1), help="Stop after this many batches of each file.")
@json_option
def dump(paths: tuple[Path, ...], with_records: bool, from_offset: int, max_batches: int | None, as_json: bool) -> None:
    """Print the contents of log files.

    A PATH is a segment (.log: its batches), an index, a time index, a producer snapshot, leader epochs, a checkpoint,
    the metadata journal; or a partition's directory or a log directory, for all their segments. Records of
    __consumer_offsets are decoded to groups and offsets.

    The CRC of every batch is checked; a damaged batch ends the output of its file, with exit status 1.

    \b
      kraftpy log dump kraftpy-data/flights-0/00000000000000000000.log --records
    """
    from kraftpy.cli.log_dump import DumpRange, dump_files
    from kraftpy.cli.log_places import places, segment_files, stopped

    chosen = DumpRange(with_records=with_records, from_offset=from_offset, max_batches=max_batches)
    with stopped(paths, exclusive=False):
        files: list[Path] = []
        for path in paths:
            if path.is_dir():
                files += [file for place in places([path])[0] for file in segment_files(place.path)]
            else:
                files.append(path)
        is_headed = len(files) > 1 or any(path.is_dir() for path in paths)
        damage = dump_files(files, chosen, as_json=as_json or not at_terminal(), is_headed=is_headed)
    if damage:
        raise Failure(*damage)


@log.command()
@click.argument("paths", type=existing, nargs=-1, required=True, metavar="PATH...")
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Parallel processes. Default: one per processor.")
@json_option
def verify(paths: tuple[Path, ...], jobs: int | None, as_json: bool) -> None:
    """Check log files, partitions or whole log directories.

    Checks every batch of a segment (form, CRC, rising offsets, leader epochs that never fall) and every record;
    indexes and time indexes against the segments; epochs, producer snapshots, checkpoints and the metadata journal by
    their checksums and against each other. Reading continues after damage, so that all of it is found.

    If anything is damaged, prints a line for each with file, position and offsets, and exits with status 1.

    \b
      kraftpy log verify kraftpy-data
      kraftpy log verify kraftpy-data/flights-0
    """
    from kraftpy.cli.log_places import places, segment_files, stopped
    from kraftpy.cli.log_verify import Report, default_jobs, total_bytes, verify_files, verify_partitions

    as_json = as_json or not at_terminal()
    files = [path for path in paths if not path.is_dir()]
    with stopped(paths, exclusive=False):
        partitions, log_directories = places(path for path in paths if path.is_dir())
        report = Report(as_json=as_json, is_brief=bool(log_directories))
        total = total_bytes(files) + total_bytes(each for place in partitions for each in segment_files(place.path))
        with progress_bar("verifying", total) as advance:
            verify_files(files, report, jobs=jobs or default_jobs(), advance=advance)
            verify_partitions(partitions, log_directories, report, jobs=jobs or default_jobs(), advance=advance)
    if partitions or log_directories:
        report.sum()
    if report.totals.damage:
        raise Failure(*map(str, report.totals.damage))


@log.command()
@click.argument("path", type=directory, metavar="PARTITION_DIR")
@click.option("--to-offset", type=click.IntRange(min=0), required=True, help="New end of the log.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, without deleting it.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@json_option
def truncate(path: Path, to_offset: int, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Truncate the log of a partition.

    Deletes the record at --to-offset and all after it.

    A batch that holds the offset is deleted as a whole, so the log may end before it. The checkpoints are adjusted, and
    the node's next start counts as one after a crash: if the partition has other replicas, the truncated copy may lead
    only once it has caught up with them. To discard only what the others do not have, use `kraftpy topic refetch`.

    \b
      kraftpy log truncate kraftpy-data/flights-0 --to-offset 1000 --dry-run
    """
    from kraftpy.cli.log_places import is_partition, partition_place, stopped
    from kraftpy.cli.log_repair import cut, plan_cut

    if not is_partition(path):
        raise click.UsageError(f"{path} is not a partition's directory")
    as_json = as_json or not at_terminal()
    with stopped([path], exclusive=True):
        place = partition_place(path)
        plan = plan_cut(place, to_offset)
        if not dry_run:
            if not yes and not at_terminal():
                raise click.UsageError("this deletes records: add --yes, or --dry-run to see which")
            if not yes:
                what = f"{plan.records} records, offsets {plan.new_end_offset} to {plan.log_end_offset - 1}"
                click.confirm(f"Delete {what}, from {path}?", abort=True)
            end_offset, report = cut(place, to_offset)
            plan.new_end_offset = end_offset
    row = {"directory": str(path), "changed": not dry_run, **plan.row()}
    if as_json:
        write_lines([json_line(row if dry_run else {**row, "opened": report})])
    else:
        verb = "would be deleted" if dry_run else "deleted"
        write_lines(
            [
                f"{path}: {plan.records} records in {plan.batches} batches ({plan.size_bytes} bytes) {verb}; "
                f"the log, which ended at {plan.log_end_offset}, {'would end' if dry_run else 'ends'} "
                f"at {plan.new_end_offset}"
            ]
        )


@log.command()
@click.argument("paths", type=directory, nargs=-1, required=True, metavar="PARTITION_DIR|LOG_DIR...")
@click.option("--from-start", is_flag=True, help="Scan the whole log and end it at the FIRST damage, wherever that is.")
@click.option("--yes", "-y", is_flag=True, help="With --from-start, do not ask for confirmation.")
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Partitions at once. Default: one per processor.")
@json_option
def recover(paths: tuple[Path, ...], from_start: bool, yes: bool, jobs: int | None, as_json: bool) -> None:
    """Recover logs as a start after a crash does.

    Scans each log from its recovery point on and truncates it at the first damage.

    Rebuilds every index and writes the checkpoints. Damage before the recovery point (of a copy without checkpoints:
    before the last segment) is left alone unless --from-start is given; find it with `kraftpy log verify`.

    \b
      kraftpy log recover kraftpy-data
    """
    from kraftpy.cli.log_places import places, stopped
    from kraftpy.cli.log_repair import bytes_to_scan
    from kraftpy.cli.log_repair import recover as recover_all
    from kraftpy.cli.log_verify import default_jobs

    as_json = as_json or not at_terminal()
    with stopped(paths, exclusive=True):
        partitions, _ = places(paths)
        if from_start and not yes:
            if not at_terminal():
                raise click.UsageError("--from-start may delete everything after the first damage: add --yes")
            click.confirm("Delete everything after the first damage of each log?", abort=True)
        with progress_bar("recovering", bytes_to_scan(partitions, from_start=from_start)) as advance:
            found, stays_clean = recover_all(
                partitions, from_start=from_start, jobs=jobs or default_jobs(), advance=advance
            )
    write_lines(json_line(each.row()) if as_json else str(each) for each in found)
    if not stays_clean:
        say("records were deleted: the next start counts as one after a crash")
    if failed := [str(each) for each in found if each.log is None]:
        raise Failure(*failed)
