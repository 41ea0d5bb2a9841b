"""A PostgreSQL server for tests, where this machine has one."""

import glob
import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager

import pytest


class Server:
    """A PostgreSQL of this test, in a temporary folder, of another user where this one is root."""

    def __init__(self, binaries, folder):
        self.binaries, self.folder, self.port = binaries, folder, free_port()
        self.run("initdb", "-D", f"{folder}/data", "-U", "owner", "-A", "trust", "--no-sync")
        with open(f"{folder}/data/postgresql.conf", "a", encoding="utf-8") as settings:
            settings.write(f"port = {self.port}\nlisten_addresses='127.0.0.1'\nunix_socket_directories = '{folder}'\n")
            settings.write("max_connections = 60\ndefault_transaction_isolation = 'read committed'\n")
            settings.write("synchronous_commit = off\nfsync = off\n")  # nothing here takes the machine down
        self.start()

    def run(self, program, *arguments):
        user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.geteuid() == 0 else []
        command = [*user, f"{self.binaries}/{program}", *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self):
        self.run("pg_ctl", "-D", f"{self.folder}/data", "-w", "-l", f"{self.folder}/log", "start")

    def stop(self, how):
        self.run("pg_ctl", "-D", f"{self.folder}/data", "-w", "-m", how, "stop")

    def new(self):
        """Return the address of a database without a ledger."""
        self.sql("DROP TABLE IF EXISTS dpconvex_ledger; DROP FUNCTION IF EXISTS dpconvex_append_only CASCADE")
        return f"postgresql://owner@127.0.0.1:{self.port}/postgres"

    def sql(self, statement):
        import psycopg

        with psycopg.connect(host="127.0.0.1", port=self.port, user="owner", dbname="postgres", autocommit=True) as own:
            return own.execute(statement)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running():
    """Start a server in a folder of its own, or skip the test."""
    pytest.importorskip("psycopg")
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb")) or [shutil.which("initdb") or ""]
    if not found[-1] or (os.geteuid() == 0 and not shutil.which("setpriv")):
        pytest.skip("there is no PostgreSQL on this machine")
    folder = tempfile.mkdtemp(prefix="pg")
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
        made = Server(os.path.dirname(found[-1]), folder)
        try:
            yield made
        finally:
            made.stop("immediate")
    finally:
        shutil.rmtree(folder)
