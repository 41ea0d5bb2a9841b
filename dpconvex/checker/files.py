"""Reads the proof in the file of a release, and compares the certificate there with what the proof claims."""

import json
import re
import zipfile
from fractions import Fraction
from typing import Any

from dpconvex.checker import Report, check
from dpconvex.checker.reading import HEXADECIMAL, MOST_BYTES, Rejected, distinct, number, parsed, part, require

FORMAT = "dpconvex certificate 1"  # of a certificate as JSON, with its proof: `certificate.schema.json`

PROSE = ("derivation", "assumptions", "advice", "event", "predicted_risk", "mean_noise", "diameter")
HEAD = re.compile(rb"\A\x93NUMPY\x01\x00..\{'descr': '<U\d+', 'fortran_order': False, 'shape': \(\), \} *\n", re.DOTALL)


def replayed(path: str) -> Report:
    """Replay a proof: of a saved release, whose certificate says the same, or a file of its own."""
    with open(path, "rb") as stream:
        if not zipfile.is_zipfile(stream):
            stream.seek(0)
            proof = stream.read(2 * MOST_BYTES + 1)
            return check(opened(proof)[1] if FORMAT.encode() in proof[:100] else proof)
        try:
            with zipfile.ZipFile(stream) as archive:
                names = [name.removesuffix(".npy") for name in archive.namelist()]
                require(len(set(names)) == len(names), "two parts of the file have one name")
                proof, head = (archive.open(name).read(MOST_BYTES + 1) for name in ("proof.json", "header.npy"))
            text = HEAD.sub(b"", head, 1).decode("utf-32-le")
            header = json.loads(text, object_pairs_hook=distinct)
            certificate = part(header, "certificate", dict)
            compare(proof, certificate)
            paid = not header.get("whitening") or bool(certificate.get("whitening"))
            require(paid, "the release was whitened, and nothing was paid for that")
        except Exception as error:  # archives and their texts can be damaged in more ways than their readers document
            damaged = Rejected(f"the file has no proof, or is damaged: {error}")
            raise (error if isinstance(error, Rejected) else damaged) from None
    return check(proof)


def opened(text: bytes) -> tuple[dict[str, Any], bytes]:
    """Return a certificate that was written as JSON, and the proof in it, which claims the same."""
    try:
        whole = json.loads(text.decode("utf-8"), object_pairs_hook=distinct)
        proof = json.dumps(part(whole, "proof", dict), separators=(",", ":")).encode()
        require({*whole} == {"format", "certificate", "proof"} and whole["format"] == FORMAT, f"it is no {FORMAT!r}")
        compare(proof, part(whole, "certificate", dict))
    except (ArithmeticError, RecursionError, TypeError, ValueError) as error:
        raise Rejected(f"no JSON of a certificate: {error}") from None
    return whole["certificate"], proof


def compare(proof: bytes, certificate: dict[str, Any]) -> None:
    claim = part(parsed(proof), "claim", dict)
    require(numbers_of(claim) == numbers_of(certificate), "the certificate claims something else than the proof")


def numbers_of(value: Any) -> Any:
    """Return data with exact numbers, without what is missing, infinite, or in words."""
    if isinstance(value, dict):
        return {k: numbers_of(v) for k, v in value.items() if k not in PROSE and v not in (None, float("inf"))}
    if isinstance(value, str) and HEXADECIMAL.fullmatch(value):
        return number(value)
    return Fraction(value) if isinstance(value, int | float) and value == value else value
