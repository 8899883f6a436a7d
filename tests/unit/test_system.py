"""What the system has: processor cores, memory, GPUs."""

import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import cases, written

from qcls_gguf import Classifier, ConfigError, RuntimeConfig
from qcls_gguf.engine.resources import physical_cores, threads
from qcls_gguf.native import Device, build_info
from qcls_gguf.native import device as device_module
from qcls_gguf.native.device import warn_of_unused_gpu
from qcls_gguf.report.environment import gpu_state
from qcls_gguf.system.control_groups import available_bytes, cpu_quota


@cases(
    ("2,0", "T4, 580.1, 900, 1590", "2", (900, 1590)),
    ("GPU-7,GPU-8", "T4, 580.1, 900, [N/A]", "GPU-7", (900, None)),
    ("", "T4, 580.1, 900, 1590", None, None),
    ("-1", "T4, 580.1, 900, 1590", None, None),
    ("0", "No devices were found", "0", None),
)
def test_the_first_visible_gpu_is_asked(
    visible: str, said: str, asked: str | None, mhz: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = written(tmp_path / "nvidia-smi", f"#!/bin/sh\necho $1 > {tmp_path}/asked; echo '{said}'\n")
    program.chmod(0o700)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = gpu_state()
    assert (found and (found.sm_mhz, found.max_sm_mhz)) == mhz
    assert asked is None or (tmp_path / "asked").read_text() == f"--id={asked}\n"
    assert found is None or (found.name, found.driver) == ("T4", "580.1")
    program.unlink()
    assert gpu_state() is None


@cases((0, 0, True), (0, 1, False), (100, 0, False))
def test_a_gpu_that_is_not_used_has_a_reason(
    shown: int, n_gpus: int, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver returns 100 where it shows none."""
    build = replace(build_info(), backend="CUDA 13.0.88, architectures 75-virtual")
    monkeypatch.setattr(device_module, "build_info", lambda: build)
    monkeypatch.setattr(device_module, "devices", lambda: [Device(kind="GPU", name="a GPU", free_bytes=1)] * n_gpus)
    monkeypatch.setattr(device_module, "library_folder", lambda: tmp_path)
    (tmp_path / "libggml-cuda.so").write_bytes(b"none")
    source = written(tmp_path / "driver.c", f"int cuInit(unsigned flags) {{ return flags + {shown}; }}")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", driver := tmp_path / "libdriver.so", source], check=True)
    said = r"the CPU computes: libggml-cuda.so \(CUDA 13.* finds none: .*file too short"
    with pytest.warns(UserWarning, match=said) if is_told else nullcontext():
        warn_of_unused_gpu(str(driver))


@cases((1, 1), (2, 1), (3, 2), (16, 15))
def test_automatic_threads_leave_a_core_where_there_is_another(
    n_cores: int, n_threads: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of cores that are unknown to the system."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(900_000, 900_000 + n_cores)), raising=False)
    assert (physical_cores(), threads(RuntimeConfig(), root=tmp_path)[0]) == (n_cores, n_threads)
    assert threads(RuntimeConfig(n_threads=7), root=tmp_path)[0] == 7
    _, told = threads(RuntimeConfig(n_threads=n_cores + 1), root=tmp_path)
    assert f"as configured, more than {n_cores} core" in told
    assert threads(RuntimeConfig(n_threads=1), root=tmp_path) == (1, "as configured")
    _, all_of_them = threads(RuntimeConfig(n_threads=n_cores), root=tmp_path)
    assert ("one for every core: while other programs work" in all_of_them) == (n_cores > 1)


def test_a_core_with_two_threads_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 4, 5}, raising=False)

    def siblings(path: Path) -> str:
        first = int(path.parts[-3].removeprefix("cpu")) % 4
        return f"{first},{first + 4}\n"

    monkeypatch.setattr(Path, "read_text", siblings)
    assert physical_cores() == 3


def test_a_system_without_affinity_counts_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    for count, cores in ((900_000, None), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert physical_cores() == (cores or count)


def make_groups(root: Path, groups: str, **files: str) -> Path:
    """A root folder with /proc/self/cgroup and files below /sys/fs/cgroup; `__` in a name stands for a slash."""
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v1(folder: str, quota: str, *, at: str = "") -> dict[str, str]:
    """The files of a group of version 1."""
    return {f"{folder}__{at}cpu.cfs_{name}_us": text for name, text in (("quota", quota), ("period", "100000"))}


@cases(
    ("0::/\n", {"cpu.max": "200000 100000\n"}, 2.0),
    ("0::/\n", {"cpu.max": "max 100000\n"}, None),
    ("0::/a/b\n", {"a__b__cpu.max": "max 100000\n", "a__cpu.max": "150000 100000\n"}, 1.5),
    # the host's path, where the container sees its own group as the top
    ("0::/kube/pod1\n", {"cpu.max": "400000 100000\n"}, 4.0),
    ("0::/../../else\n", {"cpu.max": "400000 100000\n"}, 4.0),
    ("5:cpu:/d\n0::/\n", {"cpu.max": "300000 100000\n"}, 3.0),
    ("", {"cpu.max": "100000 100000\n"}, None),
    ("not a line of the kernel\n::\n", {"cpu.max": "many\n"}, None),
    ("0::/\n", {"cpu.max": "100000 0\n"}, None),
    # version 1, whose folders have another order of names, or a link for each
    ("4:cpuacct,cpu:/docker/1\n3:memory:/docker/1\n", v1("cpu", "150000"), 1.5),
    ("4:cpu,cpuacct:/docker/1\n", v1("cpu,cpuacct", "50000"), 0.5),
    ("4:cpu,cpuacct:/docker/1\n", v1("cpu", "-1", at="docker__1__") | v1("cpu", "300000"), 3.0),
    ("4:cpuset:/docker/1\n", v1("cpuset", "50000"), None),
)
def test_a_quota_is_the_kernels(groups: str, files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    assert cpu_quota(make_groups(tmp_path, groups, **files)) == quota


@cases(
    ("200000 100000", (2, "a quota of 2 CPUs, 64 cores")),
    ("20000 100000", (1, "a quota of 0.2 CPUs, 64 cores")),
    ("max 100000", (63, "64 cores less one")),
)
def test_a_quota_limits_threads(quota: str, wanted: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(900_000, 900_064)), raising=False)
    root = make_groups(tmp_path, "0::/\n", **{"cpu.max": quota})
    assert threads(RuntimeConfig(), root=root) == wanted
    assert threads(RuntimeConfig(n_threads=63), root=root) == (63, "as configured")


def memory(at: str = "", **texts: str) -> dict[str, str]:
    """The files of a group's memory."""
    return {f"{at}memory.{name}": f"{text}\n" for name, text in texts.items()}


OWN = memory("a__", max="1000", current="900", stat="anon 1\ninactive_file 200")
OF_V1 = memory("memory__docker__1__", usage_in_bytes="400", stat="cache 5\ntotal_inactive_file 100")


@cases(
    ("0::/\n", memory(max="1000", current="300"), 700),
    ("0::/\n", memory(max="max", current="300"), None),
    ("0::/a\n", OWN | memory(max="2000", current="500"), 300),
    ("0::/\n", memory(max="100", current="300", stat="odd"), 0),
    ("0::/\n", memory(max="1000"), None),
    ("", {}, None),
    ("9:memory:/docker/1\n", OF_V1 | memory("memory__docker__1__", limit_in_bytes="1000"), 700),
    ("9:memory:/docker/1\n", OF_V1 | memory("memory__docker__1__", limit_in_bytes="9223372036854771712"), None),
)
def test_the_memory_of_a_container(
    groups: str, files: dict[str, str], left: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = make_groups(tmp_path, groups, **files)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1 << 40))
    assert available_bytes(root) == (1 << 40 if left is None else left)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2))
    assert available_bytes(root) == min(2, left if left is not None else 2)


def test_a_python_without_its_lock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(ConfigError, match="start it with PYTHON_GIL=1 or -X gil=1"):
        Classifier.from_config("mission")
