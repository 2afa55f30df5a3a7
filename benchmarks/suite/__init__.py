"""The benchmarks, in the order in which `./dev bench all` runs them."""

from __future__ import annotations

from benchmarks.benchmark import Benchmark
from benchmarks.suite.agents import Agents
from benchmarks.suite.continuations import Continuations
from benchmarks.suite.enqueue import Enqueue
from benchmarks.suite.flow import Flow
from benchmarks.suite.graphs import Graphs
from benchmarks.suite.growth import Growth
from benchmarks.suite.jobs import Jobs
from benchmarks.suite.latency import Latency
from benchmarks.suite.limits import Limits
from benchmarks.suite.logs import KeptLogs
from benchmarks.suite.memory import Memory
from benchmarks.suite.pages import Pages
from benchmarks.suite.retention import Retention
from benchmarks.suite.scale import Scale
from benchmarks.suite.steps import Steps
from benchmarks.suite.sustained import Sustained
from benchmarks.suite.workers import ManyWorkers

BENCHMARKS: tuple[Benchmark, ...] = (
    Jobs(),
    Steps(),
    Latency(),
    Continuations(),
    Agents(),
    Enqueue(),
    Graphs(),
    Limits(),
    Flow(),
    KeptLogs(),
    Growth(),
    Scale(),
    Sustained(),
    Retention(),
    Memory(),
    ManyWorkers(),
    Pages(),
)
