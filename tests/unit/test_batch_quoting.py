"""What reaches the command of a batch script, and sbatch, whatever stands in a name. No Slurm is needed."""

import os
import shlex
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpifed.cli.batch_script import Batch, quoted, sbatch_words

HOSTILE = "-\n\r\t \"'`$\\;#%!&*?[]{}()<>|~=:,é😀\u2028\u00a0\x7f\x1b\udcff"
words = st.text(
    st.one_of(st.sampled_from(HOSTILE), st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    min_size=1,
    max_size=12,
)


def shell(script: str, *arguments: str, **variables: str) -> list[str]:
    """What ``script`` gives to ``mpifed_launch``; a stub stands for the package."""
    stub = "() { echo /; }", "() { printf '%s\\0' \"$@\"; }"
    done = subprocess.run(
        ["bash", "-c", script.replace('. "$here/cli/launcher.sh"', ""), "job.sbatch", *arguments],
        env={"BASH_FUNC_python%%": stub[0], "BASH_FUNC_mpifed_launch%%": stub[1], **variables},
        capture_output=True,
        timeout=20,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr.decode()
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def sbatch_reads(line: str) -> list[str]:
    """The words that sbatch finds in a line of ``#SBATCH``, by the rules of its source, ``_get_argument``."""
    found, word, quote, escaped = [], None, "", False
    for character in line.removeprefix("#SBATCH"):
        if escaped:
            word, escaped = (word or "") + character, False
        elif character == "\\":
            escaped = True
        elif character == quote:
            quote = ""
        elif quote:
            word += character
        elif character in "\"'":
            word, quote = word or "", character
        elif character == "#":
            break
        elif character in " \t\n\v\f\r":
            found, word = found + ([] if word is None else [word]), None
        else:
            word = (word or "") + character
    assert not quote and not escaped
    return found + ([] if word is None else [word])


@settings(max_examples=60, deadline=None)
@given(st.lists(words, min_size=5, max_size=5), st.lists(words, max_size=3))
@example(["-n 2.toml", "run.out=a\nb", "x=$(id)`id`", "\n#SBATCH --nodes=9", "'\"\\"], ["\r", "#"])
def test_the_command_gets_what_was_meant(names, more):
    job, *changes, task, command = names
    batch = Batch(job, tuple(changes), (("seed=1",), (task,)), command=(command, *more))
    text = batch.script()
    arguments = shell(text, *more, SLURM_ARRAY_TASK_ID="1")
    place = f"./{job}" if job[0] in "-:" else job
    assert arguments == ["mpifed", "run", place, *changes, task, *more]
    head, body = text.split("\ncase ")
    lines = head.splitlines()
    assert lines[0] == "#!/bin/bash" and all(line.startswith("#SBATCH ") for line in lines[3:]), head
    assert all(line.isprintable() for line in text.split("\n"))
    name, *options = (sbatch_reads(line) for line in lines[3:])
    assert len(name) == 1 and name[0].startswith("--job-name=")
    assert options == [[option] for option in ("--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1",
                                               "--array=0-1", "--signal=B:USR1@120")]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(words.filter(str.isprintable), words.filter(str.isprintable))
def test_sbatch_gets_what_was_meant(name, value):
    """A job's name and an option of the user's."""
    name = name.replace("/", "_").strip(".") or "x"
    batch = Batch(f"jobs/{name}.toml", extra=(sbatch_words(f"--comment={shlex.quote(value)}"),))
    lines = [sbatch_reads(line) for line in batch.script().splitlines() if line.startswith("#SBATCH")]
    assert lines[0] == [f"--job-name={name}"] and lines[-1] == [f"--comment={value}"]


def test_a_plain_word_stays_as_it_is():
    assert quoted("run.out=runs/a") == "run.out=runs/a" and quoted("a b") == "'a b'"
    assert quoted("é\n") == r"$'\303\251\012'"


@pytest.mark.parametrize(
    "line, read",
    [
        ("--account=abc", ["--account=abc"]),
        ("#SBATCH --account=abc # mine", ["--account=abc"]),
        ("-A abc --exclusive", ["-A", "abc", "--exclusive"]),
        ("--comment='a b' --nice=#1", ["--comment=a b", "--nice=#1"]),
    ],
)
def test_options_of_the_user(line, read):
    assert sbatch_words(line) == tuple(read)


@pytest.mark.parametrize(
    "line, says",
    [
        ("account=abc", "'account=abc' is no option"),
        ("--comment=a b", "'b' is no option; values with blanks need quotes"),
        ("-A abc def", "'def' is no option"),
        ("--comment='a", "No closing quotation"),
        ("--a=1\nrm -rf x", "'rm' is no option"),
        ("--a='1\nrm'", "no line breaks"),
        ("--", "'--' is no option"),
        ("#SBATCH", "it is empty"),
        ("", "it is empty"),
    ],
)
def test_no_options(line, says):
    with pytest.raises(ValueError, match=says):
        sbatch_words(line)
