"""Executes the pool's pure functions symbolically: contracts, the model beside the pool, and wrong versions of both."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from vmmref.cli import UsageError
from vmmref.cli._output import check_writable, header, package_version, write_json
from vmmref.conformance.symbolic.findings import Finding, status_of

DEFAULT_TIMEOUT_SECONDS = 60.0
"""For one contract; the slowest takes some seconds on one core that is not shared."""


def main(arguments: list[str]) -> int:
    """0 all confirmed and all wrong versions refuted, 1 something is not as it should be, 2 not decided or not run."""
    parser = argparse.ArgumentParser(prog="python -m vmmref.conformance.symbolic", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="what has this text in its name or is of this rule")
    parser.add_argument("--kind", choices=("contract", "pair", "wrong"), help="only this kind")
    parser.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT_SECONDS, metavar="SECONDS", help="for each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings as JSON")
    given = parser.parse_args(arguments)
    if not 0 < given.timeout < float("inf"):
        parser.error(f"--timeout {given.timeout} is no positive number of seconds")
    try:
        check_writable(given.json, "--json")
    except UsageError as error:
        parser.error(str(error))
    try:
        import crosshair  # noqa: F401
    except ImportError:
        print("CrossHair is not installed; `pip install 'vmmref[prove]'` brings it", file=sys.stderr)
        return 2
    from vmmref.conformance.symbolic.run import find_all

    findings = []
    for finding in find_all(given.only, given.kind, given.timeout):
        findings.append(finding)
        print(_line(finding), flush=True)
    if not findings:
        parser.error(f'nothing is called "{given.only}" or belongs to such a rule')
    print(_closing(findings))
    write_json(given.json, _report(findings))
    return status_of(findings)


def _line(finding: Finding) -> str:
    answer = finding.answer
    mark = "" if finding.is_due else "  NOT AS IT SHOULD BE"
    line = (
        f"{answer.state:9} {answer.seconds:5.1f} s {answer.paths:4} paths  {finding.kind:8} {finding.name} "
        f"[{', '.join(finding.rules)}]{mark}"
    )
    return f"{line}\n{'':27}{answer.counterexample}" if answer.counterexample else line


def _closing(findings: list[Finding]) -> str:
    parts = []
    for kind, plural in (("contract", "contracts"), ("pair", "pairs"), ("wrong", "wrong versions")):
        of_kind = [finding for finding in findings if finding.kind == kind]
        if of_kind:
            due = of_kind[0].due
            parts.append(f"{sum(one.is_due for one in of_kind)} of {len(of_kind)} {plural} {due}")
    return f"{', '.join(parts)}, in {sum(finding.answer.seconds for finding in findings):.1f} s"


def _report(findings: list[Finding]) -> dict[str, Any]:
    return {
        **header(),
        "solver": {"name": "crosshair", "version": package_version("crosshair-tool")},
        "seconds": round(sum(finding.answer.seconds for finding in findings), 3),
        "findings": [
            {
                "kind": finding.kind,
                "name": finding.name,
                "rules": list(finding.rules),
                "state": finding.answer.state,
                "due": finding.due,
                "counterexample": finding.answer.counterexample,
                "paths": finding.answer.paths,
                "seconds": round(finding.answer.seconds, 3),
            }
            for finding in findings
        ],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
