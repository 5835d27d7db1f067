# SPDX-License-Identifier: Apache-2.0
"""New processes, forked from one that has imported torch and what torch imports for the first optimizer, because importing
takes most of such a test's time.

Otherwise they are like `python -c CODE`: torch has run no operation, adamant is not imported, and the interpreter exits
normally.
"""
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile

# Each process has a parent that sends its exit status, so that processes end in any order.
_SERVER = """
import json, os, signal, socket, sys
import torch, torch._dynamo

def next_process():
    control = socket.socket(fileno=0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, files, _, _ = socket.recv_fds(control, 1 << 18, 3)
        if not message:
            os._exit(0)
        if os.fork():
            for file in files:
                os.close(file)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pid = os.fork()
        if pid:
            os.write(files[0], b"%d" % pid)
            os.write(files[0], b"%d" % os.waitpid(pid, 0)[1])
            os._exit(0)
        request = json.loads(message)
        control.detach()
        for file, number in ((os.open(os.devnull, os.O_RDONLY), 0), (files[1], 1), (files[2], 2)):
            os.dup2(file, number)
            os.close(file)
        os.close(files[0])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.path[1:1] = request["path"]
        sys.argv = ["-c", *request["arguments"]]
        return request["code"]

def main():
    code, names = next_process(), sys.modules["__main__"].__dict__
    for name in [name for name in names if not name.startswith("__")]:
        del names[name]
    exec(compile(code, "<string>", "exec"), names)

main()
"""
_READ_AT_START = ("OMP_", "KMP_", "GOMP_", "MKL_", "LD_", "TORCH", "PYTHON")


@functools.lru_cache(None)
def _server(read_at_start):
    """A socket for requests. The server ends when no process has it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    others = {name: value for name, value in os.environ.items() if not name.startswith(("ADAMANT_", *_READ_AT_START))}
    with theirs:
        subprocess.Popen([sys.executable, "-c", _SERVER], stdin=theirs, env={**others, **dict(read_at_start)})
    return ours


class Process:
    """A process that runs code. The environment of this process is passed on, with changes."""

    def __init__(self, code, *arguments, **environment):
        environment = {**os.environ, **environment}
        read_at_start = frozenset((name, value) for name, value in environment.items()
                                  if name.startswith(_READ_AT_START) and name != "PYTHONPATH")
        request = {"code": code, "arguments": list(map(str, arguments)), "environment": environment,
                   "path": [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]}
        self._files = [tempfile.TemporaryFile("w+") for _ in range(2)]
        self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with status:
            socket.send_fds(_server(read_at_start), [json.dumps(request).encode()],
                            [file.fileno() for file in (status, *self._files)])
        pid = self._status.recv(100)
        assert pid, "cannot start a process: the server has ended. Its error is in the output of pytest"
        self.pid, self.returncode = int(pid), None

    def poll(self, timeout=0):
        """The exit status, or None within the timeout: minus the signal that has ended it."""
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = os.waitstatus_to_exitcode(int(self._status.recv(100)))
            self.stdout, self.stderr = self._read(0), self._read(1)
            self._status.close()
        return self.returncode

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.poll(None)

    def _read(self, number):
        with self._files[number] as file:
            file.seek(0)
            return file.read()


def run(code, *arguments, timeout=600, **environment):
    """Runs code in a new process, which then has returncode, stdout and stderr."""
    process = Process(code, *arguments, **environment)
    if process.poll(timeout) is None:
        process.kill()
        raise TimeoutError(process.stdout + process.stderr)
    return process


_SCRIPT = """
import os, runpy, sys
del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def script(path, *arguments, **environment):
    """A process that runs a script, as `python path` does."""
    return Process(_SCRIPT, path, *arguments, **environment)


def run_script(path, *arguments, **more):
    """Runs a script in a new process, as run() does code."""
    return run(_SCRIPT, path, *arguments, **more)


def words(code, *arguments, **environment):
    """The words that code prints in a new process, which must succeed."""
    done = run(code, *arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()
