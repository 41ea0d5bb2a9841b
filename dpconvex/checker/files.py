"""Reads the proof in the file of a release, and compares the file's certificate with the proof's claim."""

import json
import re
import zipfile
from dataclasses import replace
from typing import Any

from dpconvex.checker import Report, check
from dpconvex.checker.reading import MOST_BYTES, Rejected, as_exact, object_in, read_json, reader, require

NUMBERS = re.compile(rb'\s*\{\s*"format":\s*"dpconvex (coefficients|evaluation) \d+"')  # files without a proof
FORMS = ("dpconvex release", "dpconvex statistics")  # of saved releases with proofs
FORMAT = "dpconvex certificate 1"  # of a certificate as JSON, with its proof: `certificate.schema.json`

SCHEMA = "the learnt schema has the stated cost, on top of this guarantee; a file without a cost states nothing about schemas"
ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")  # An escaped character in JSON
AUTHOR = "the author of the file ran this fit and released its parameters: nothing links them to the proof"
MARK = re.compile(r'"?not_private_because"?\s*[:=]\s*["\']([^"\']+)["\']')  # The mark in JSON or in a schema
PROSE = ("derivation", "assumptions", "advice", "event", "predicted_risk", "mean_noise", "diameter", "learnt")
# What commands print beside a certificate as JSON
SHOWN = ("schema", "lines", "risk", "private", "status", "not_private_because")
BESIDE = (
    "what stands beside the certificate and the proof in the file is what a command printed: nothing of it was checked"
)
HEAD = re.compile(rb"\A\x93NUMPY\x01\x00..\{'descr': '<U\d+', 'fortran_order': False, 'shape': \(\), \} *\n", re.DOTALL)


def replay_file(path: str) -> Report:
    """Replay the proof in a saved release, in a certificate as JSON, or alone; reject a file marked as not private."""
    with open(path, "rb") as stream:
        if not zipfile.is_zipfile(stream):
            stream.seek(0)
            proof = stream.read(2 * MOST_BYTES + 1)
            check_mark(proof.decode("utf-8", "replace"))
            if stated_only := NUMBERS.match(proof):
                raise Rejected(
                    f"it holds {stated_only[1].decode()} without a proof, so the stated cost cannot be checked"
                )
            stands = FORMAT.encode() in proof[:100]
            known = stands or b"dpconvex proof" in proof
            require(known, "the file is not a saved release, a certificate by `Certificate.to_json()`, or a proof")
            certificate, proof, beside = certificate_and_proof(proof) if stands else ({}, proof, False)
            report = check(proof, certificate.get("event"))
            trusted = (*report.trusted, *[SCHEMA] * ("learnt" in certificate), *[BESIDE] * beside)
            return replace(report, trusted=trusted, form=FORMAT if stands else "")
        try:
            with zipfile.ZipFile(stream) as archive:
                names = [name.removesuffix(".npy") for name in archive.namelist()]
                require(len(set(names)) == len(names), "two parts of the file have the same name")
                head = archive.open("header.npy").read(MOST_BYTES + 1)
                check_mark(text := HEAD.sub(b"", head, 1).decode("utf-32-le"))
                require("proof.json" in archive.namelist(), "it has no proof, so its statements cannot be checked")
                proof = archive.open("proof.json").read(MOST_BYTES + 1)
            header = read_json(text.encode())
            certificate = header["certificate"]
            compare_claims(proof, certificate)
            require(header["spent"] == certificate["privacy"], "the file and its certificate state different costs")
            require(header["format"] in FORMS, f"its format is {header['format']!r:.50}")
        except Exception as error:  # archives and their texts can be damaged in more ways than their readers document
            damaged = Rejected(f"the file has no proof, or is damaged: {error}")
            raise (error if isinstance(error, Rejected) else damaged) from None
    report = check(proof, certificate.get("event"))
    costs = [SCHEMA] * ("learnt" in header or "learnt" in certificate)
    return replace(report, trusted=(AUTHOR, *report.trusted, *costs), form=header["format"])


def check_mark(text: str) -> None:
    """Reject the text of a file that is marked as not private."""
    mark = MARK.search(ESCAPED.sub(lambda found: chr(int(found[1], 16)), text))
    require(mark is None, f"NOT PRIVATE: {mark and mark[1]}. Do not publish it; its proof was not checked")


def certificate_and_proof(text: bytes) -> tuple[dict[str, Any], bytes, bool]:
    """Return certificate and proof in a JSON text, and whether more stands beside them; reject unless they claim the same."""
    try:
        whole = read_json(text)
        require(isinstance(whole, dict) and isinstance(whole.get("proof"), dict), "the certificate has no 'proof'")
        proof = json.dumps(whole["proof"], separators=(",", ":")).encode()
        known = {"format", "certificate", "proof"} <= {*whole} <= {"format", "certificate", "proof", *SHOWN}
        require(known and whole["format"] == FORMAT, f"it is not a {FORMAT!r}")
        marked = whole.get("not_private_because") or whole.get("private", True) is not True
        require(not marked, f"NOT PRIVATE: {whole.get('not_private_because')!r:.500}")
        require(isinstance(whole["certificate"], dict), "the certificate is no object")
        compare_claims(proof, whole["certificate"])
    except (ArithmeticError, RecursionError, TypeError, ValueError) as error:
        raise Rejected(f"not a certificate as JSON: {error}") from None
    return whole["certificate"], proof, len(whole) > 3


def compare_claims(proof: bytes, certificate: dict[str, Any]) -> None:
    claim = reader("claim")(object_in(proof).get("claim"))  # the nodes may be of a kind that only later versions know
    given = {key: value for key, value in certificate.items() if key not in PROSE}
    try:
        same = reader("claim")(as_exact(given)) == claim
    except Rejected as error:
        raise Rejected(f"the certificate and the proof claim different things: {error.args[0]}") from None
    require(same, "the certificate and the proof claim different things")
