"""Facts about the machine and its processes."""

import mmap
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from common.machine import (
    ProcessIdentity,
    bf16_flag,
    built_commit,
    cpu_flags,
    fastest_precision,
    kill_if_local,
    own_process,
    page_faults,
    peak_resident_mb,
    resident_mb,
    start_time,
)
from retinanet.config_file import load_config
from tests.support.commands import run_program

REPOSITORY = Path(__file__).resolve().parents[2]


def test_commit_of_a_container_image(tmp_path: Path) -> None:
    file = tmp_path / "COMMIT"
    assert built_commit(file) is None
    file.write_text("unknown\n")
    assert built_commit(file) is None
    file.write_text("0123456789abcdef0123456789abcdef01234567\n")
    assert built_commit(file) == "0123456789abcdef0123456789abcdef01234567"


N1 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop"
V1 = "jscvt fcma sha3 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm dcpodp svei8mm svebf16"
SKYLAKE = "fpu sse2 ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt xsave avx f16c lahf_lm abm bmi1 avx2"
SKYLAKE += " bmi2 erms avx512f avx512dq clflushopt avx512cd avx512bw avx512vl xsaveopt xsavec"
PROCESSORS = {
    "AWS Graviton 3": (
        "processor\t: 0\nBogoMIPS\t: 2100.00\nFeatures\t: {}\nCPU implementer\t: 0x41\n",
        f"{N1} {V1} i8mm bf16 dgh rng",
    ),
    "Cascade Lake": ("vendor_id\t: GenuineIntel\nflags\t\t: {}\n", f"{SKYLAKE} avx512_vnni"),
    "Zen 4": ("vendor_id\t: AuthenticAMD\nflags\t\t: {}\n", f"{SKYLAKE} avx512_vnni avx512_bf16"),
    "Sapphire Rapids": (
        "vendor_id\t: GenuineIntel\nflags\t\t: {}\n",
        f"{SKYLAKE} avx_vnni avx512_bf16 avx512_vnni amx_bf16 avx512_fp16 amx_tile amx_int8",
    ),
    "/proc is hidden": ("{}", ""),
}
"""Lines of /proc/cpuinfo, and flags in them."""


@pytest.mark.parametrize("name", PROCESSORS)
def test_fastest_precision(name: str, tmp_path: Path) -> None:
    text, flags = PROCESSORS[name]
    file = tmp_path / "cpuinfo"
    file.write_text(text.format(flags) if flags else "")
    known = cpu_flags(file)
    assert known == set(flags.split())
    instructions = {"Zen 4": "avx512_bf16", "Sapphire Rapids": "amx_bf16"}.get(name)
    assert bf16_flag(known) == instructions
    assert fastest_precision(known) == ("bf16" if instructions else "float32")


def test_auto_precision_of_the_configuration() -> None:
    engine = load_config("demo.yaml", ["engine.precision=auto"]).engine
    assert engine == load_config("demo.yaml").engine
    assert engine.precision == fastest_precision()
    assert load_config("demo.yaml", ["engine.precision=bf16"]).engine.precision == "bf16"


Sleeper = subprocess.Popen[bytes]


@pytest.fixture
def stopped() -> Iterator[Sleeper]:
    process = subprocess.Popen(["sleep", "100"])
    process.send_signal(signal.SIGSTOP)
    yield process
    process.kill()
    process.wait()


def process_identity(process: Sleeper) -> ProcessIdentity:
    current, started = own_process(), start_time(process.pid)
    assert current is not None and started is not None
    return replace(current, number=process.pid, started=started)


def test_stopped_process_is_killed(stopped: Sleeper) -> None:
    kill_if_local(process_identity(stopped))
    assert stopped.wait(timeout=20) == -signal.SIGKILL


def test_other_process_of_the_same_number_is_not_killed(stopped: Sleeper) -> None:
    target = process_identity(stopped)
    kill_if_local(replace(target, started=target.started - 1))
    kill_if_local(replace(target, namespace="another boot pid:[1]"))
    with pytest.raises(subprocess.TimeoutExpired):
        stopped.wait(timeout=0.1)


def test_ended_unknown_or_own_process_is_ignored() -> None:
    ended = subprocess.Popen(["sleep", "100"])
    target = process_identity(ended)
    ended.kill()
    ended.wait()
    kill_if_local(target)
    kill_if_local(None)
    kill_if_local(own_process())


def test_own_identity_equals_that_seen_by_others() -> None:
    program = "from common.machine import own_process; print(own_process()); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    printed = process.stdout.readline().decode().strip()
    assert printed == str(process_identity(process))
    process.communicate(b"\n", timeout=20)


SIZE = 64 << 20


def touch_every_page(memory: mmap.mmap) -> None:
    for page in range(0, SIZE, mmap.PAGESIZE):
        memory[page] = 1


def test_page_faults_and_resident_memory() -> None:
    before, faults_before = resident_mb(), page_faults()
    with mmap.mmap(-1, SIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        touch_every_page(memory)
        touched, faults = resident_mb(), page_faults()
        touch_every_page(memory)
        again = page_faults()
    assert faults - faults_before >= SIZE // mmap.PAGESIZE > 100 * (again - faults)
    assert 60 < touched - before < 80  # 64 MiB are 67.1 MB
    assert resident_mb() < touched - 60
    assert peak_resident_mb() >= touched - 1


PEAK_OF_A_CHILD = """
from common.machine import peak_resident_mb
print(peak_resident_mb())
"""


def test_peak_memory_excludes_the_parent_process() -> None:
    with mmap.mmap(-1, 4 * SIZE) as memory:
        memory.write(bytes(4 * SIZE))
        done = run_program(sys.executable, "-c", PEAK_OF_A_CHILD, check=True)
    assert float(done.stdout) < 100


def test_module_does_not_load_torch() -> None:
    text = "import sys, common.machine; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", text], cwd=REPOSITORY, check=True)
