"""The command line in a folder of data."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from command_line import main
from tables_of_commands import DATA, SCHEMA, SETTINGS, SHOP


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out, parse_constant=pytest.fail)


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Return a function that runs a command, in words and further arguments, in a folder of data."""
    monkeypatch.chdir(tmp_path)
    DATA.to_csv("data.csv", index=False)
    SHOP.to_csv("shop.csv", index=False)
    Path("shop").mkdir()
    for number, (start, stop) in enumerate([(0, 10), (10, 10), (10, 300), (300, 400)]):
        SHOP[start:stop].to_parquet(f"shop/part{number}.parquet")
    Path("shop.toml").write_text(SCHEMA, encoding="utf-8")
    Path("fit.toml").write_text(SETTINGS, encoding="utf-8")

    def command(words, *further, ends=None):
        status = main([*words.split(), *further])
        captured = capsys.readouterr()
        assert ends is None or status == ends, captured.err
        return Outcome(status, captured.out, captured.err)

    return command
