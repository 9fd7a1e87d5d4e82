import mmap
import subprocess
import sys
from pathlib import Path

from common.machine import page_faults, peak_resident_mb, resident_mb

REPOSITORY = Path(__file__).resolve().parents[2]
SIZE = 64 << 20


def touch_every_page(memory: mmap.mmap) -> None:
    for page in range(0, SIZE, mmap.PAGESIZE):
        memory[page] = 1


def test_fresh_pages_are_counted_once_and_are_resident_until_they_are_given_back() -> None:
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


def test_the_peak_is_this_programs_own() -> None:
    with mmap.mmap(-1, 4 * SIZE) as memory:
        memory.write(bytes(4 * SIZE))
        command = [sys.executable, "-c", PEAK_OF_A_CHILD]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 100


def test_reading_counters_loads_no_torch() -> None:
    text = "import sys, common.machine; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", text], cwd=REPOSITORY, check=True)
