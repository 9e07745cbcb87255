#!/usr/bin/env bash
# The GPU run: what this machine can do, then the check of the reference pool on a real device, in under four minutes.
#
#   ci/gpu.sh REPORT_FOLDER [DEVICE [SECONDS]]
#
# DEVICE is cuda:0 by default; "sim" rehearses the same steps without a GPU. SECONDS is how long the check may take, 60 by
# default; in much less, not every rule is exercised and the check ends with 2.
#
# Works from a checkout: nothing is installed or built on a machine with a GPU. Needs Python 3.11+ with torch,
# cuda-bindings, numpy, hypothesis, typer and rich. Every step is a process of its own with a time-out, so a device that
# hangs or a context that breaks ends its step and not the run. The device's settings are left as they are.
# Exit status: 0 all steps passed, 1 a rule is broken, 2 a step could not run; the reports are written in every case.
set -u

folder=${1:?usage: ci/gpu.sh REPORT_FOLDER [DEVICE [SECONDS]]}
device=${2:-cuda:0}
seconds=${3:-60}
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
export PYTHONPATH="$root:$root/models${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$folder" || exit 2

subject=vmmref.conformance.subjects.reference:make
if [[ $device == sim* ]]; then
    # What hardware cannot do is left out, so that the rehearsal takes the road that the device will take.
    subject=vmmref.conformance.subjects.reference:make_as_on_hardware
fi

worst=0
step() { # name, time-out in seconds, command ...
    local name=$1 limit=$2 status
    shift 2
    echo "== $name"
    timeout --kill-after=5 "$limit" "$@" >"$folder/$name.txt" 2>&1
    status=$?
    tail -n 3 "$folder/$name.txt"
    if ((status == 124 || status == 137)); then
        echo "$name did not end within $limit s" | tee -a "$folder/$name.txt"
        status=2
    fi
    ((status > 2)) && status=2
    printf '%s\t%s\n' "$name" "$status" >>"$folder/steps.tsv"
    ((status > worst)) && worst=$status
    return 0
}

: >"$folder/steps.tsv"
step doctor 45 "$python" -m vmmref doctor --json "$folder/doctor.json"
step processes 45 "$python" -m vmmref.conformance.cycles "$device" 2000 2
step check $((seconds + 60)) "$python" -m vmmref check --device "$device" --subject "$subject" --profile quick \
    --max-seconds "$seconds" \
    --json "$folder/check.json" --junit "$folder/check.xml" --traces "$folder/traces"
step bench 45 "$python" -m vmmref bench --device "$device" --only hand-over --json "$folder/bench.json"
cat "$folder/steps.tsv"
exit "$worst"
