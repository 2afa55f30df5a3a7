"""A supervisor with little patience, so that tests of many deaths don't take minutes.

python hasty.py PROCESSES GRACE
"""

import sys

from holdfast.cli.worker import prefixed_writer
from holdfast.engine.processes.supervisor import RestartPolicy, Supervisor
from holdfast.telemetry.log_format import configure_console_log

processes, grace = int(sys.argv[1]), float(sys.argv[2])
policy = RestartPolicy(first_pause=0.02, longest_pause=0.1, patience=1.0)
command = [sys.executable, "-m", "holdfast.cli", "--app=shop:app", "worker", "--lease=5", f"--grace={grace}"]
configure_console_log(False, "holdfast | ")
sys.exit(Supervisor(lambda _number: command, processes, grace, prefixed_writer(len("worker 1"), False), policy).run())
