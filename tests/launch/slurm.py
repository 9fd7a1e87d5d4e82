"""A real Slurm on two hosts of one machine, from Debian's packages: unpacked, not installed."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.launch.two_hosts import ADDRESSES, NAMES, REPOSITORY, TwoHosts

PACKAGES = REPOSITORY / ".venv-slurm"
NAMES_OF_PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins"),
    *("munge", "libmunge2", "libhwloc15", "liblua5.1-0"),
)
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={name}({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
PluginDir={libraries}/slurm-wlm
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_interval=2
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ReturnToService=2
JobRequeue=1
MpiDefault=none
PartitionName=all Nodes=ALL Default=YES
"""
NODE = "NodeName={name} NodeAddr={address} CPUs={cpus} CoresPerSocket={cpus} RealMemory=1000\n"


@dataclass(frozen=True)
class Slurm:
    """The cluster: `left` has its controller, and both hosts take jobs."""

    hosts: TwoHosts
    environment: Mapping[str, str]

    def call(self, *command: str) -> str:
        """Run a command of Slurm on the first host; return its output."""
        arguments = [*self.hosts.enter_left, f"--wd={REPOSITORY}", *command]
        done = subprocess.run(
            arguments,
            check=False,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """Return the state of a job, such as `RUNNING`."""
        return self.call("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")

    def wait_for(self, job: str, state: str, *, seconds: float = 240) -> None:
        """Wait until a job has a state."""
        end = time.monotonic() + seconds
        while (found := self.state(job)) != state:
            assert time.monotonic() < end, f"job {job}: {found} instead of {state}"
            time.sleep(0.5)


def unpack() -> None:
    """Download and unpack the packages once; skip the test where there are none."""
    if (PACKAGES / "usr/sbin/slurmd-wlm").is_file():
        return
    archives = PACKAGES / "archives"
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    download = ["apt-get", "install", "--yes", "--reinstall", "--download-only", "--quiet"]
    download += ["--no-install-recommends", "-o", f"Dir::Cache::archives={archives}"]
    try:
        subprocess.run([*download, *NAMES_OF_PACKAGES], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no packages of Slurm can be downloaded, as root on Debian 12: {error}")
    for archive in archives.glob("*.deb"):
        subprocess.run(["dpkg", "-x", archive, PACKAGES], check=True)


@contextmanager
def started_slurm(hosts: TwoHosts, folder: Path) -> Iterator[Slurm]:
    """Start Slurm's daemons on two hosts while the context lasts; skip if it is not unpacked."""
    unpack()
    libraries = next(PACKAGES.glob("usr/lib/*/slurm-wlm")).parent
    file = folder / "slurm.conf"
    nodes = "".join(
        NODE.format(name=name, address=address, cpus=1)
        for name, address in zip(NAMES, ADDRESSES, strict=True)
    )
    facts = {"name": NAMES[0], "address": ADDRESSES[0], "folder": folder, "libraries": libraries}
    file.write_text(CONFIGURATION.format(**facts) + nodes)
    # The version by name: the hosts mount no /sys/fs/cgroup, by which slurmd would choose it.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (folder / "state").mkdir()
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    programs = PACKAGES / "usr/sbin"
    environment = {
        **os.environ,
        "PATH": f"{PACKAGES / 'usr/bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{libraries}:{libraries / 'slurm-wlm'}",
        "SLURM_CONF": str(file),
    }
    munge = [f"--{name}-file={folder / name}" for name in ("key", "pid", "seed", "log")]
    daemons = [
        (0, [programs / "munged", "--foreground", "--force", *munge, f"--socket={folder}/munge"]),
        (0, [programs / "slurmctld-wlm", "-D", "-c"]),
        *(
            (number, [programs / "slurmd-wlm", "-D", "-N", name, "-d", programs / "slurmstepd-wlm"])
            for number, name in enumerate(NAMES)
        ),
    ]
    with ExitStack() as stack:
        for number, (host, command) in enumerate(daemons):
            log = stack.enter_context((folder / f"daemon{number}.log").open("w"))
            words = [*hosts.enter[host], f"--wd={folder}", *map(str, command)]
            process = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            time.sleep(1)
        slurm = Slurm(hosts, environment)
        end = time.monotonic() + 60
        while slurm.call("sinfo", "--noheader", "--states=idle", "--format=%D") != "2":
            assert time.monotonic() < end, (folder / "daemon1.log").read_text()
            time.sleep(0.5)
        yield slurm
