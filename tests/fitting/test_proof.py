"""Certificates have proofs, which travel with releases, and are replayed from the file alone."""

import io
import json
import pickle
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from command_line import main
from learners_of_tests import X, Y
from refused import refused

import dpconvex as dp
from dpconvex.checker import Rejected

D = X.shape[1]
LEARNER, DATA = dp.load("logistic_regression", features=D), {"x": X, "y": Y}
PURE, LOOSE, PROTECTED = dp.Privacy(1.0), dp.Privacy(1.0, 1e-5), dp.Privacy(1.0, 1e-5, "add-remove")
RELEASES = {
    "objective": lambda: dp.solve(LEARNER, DATA, PURE),
    "clipped": lambda: dp.solve(LEARNER, DATA, LOOSE),
    "counted": lambda: dp.solve(LEARNER, DATA, PROTECTED, dp.OutputPerturbation("gaussian"), size=500),
    "samples": lambda: dp.solve(LEARNER, DATA, PROTECTED, dp.NoisyGradientDescent(clip=0.1, sampling=0.1), size=500),
    "adaptive steps": lambda: dp.solve(LEARNER, DATA, PROTECTED, dp.AdaptiveSteps(), size=500),
    "normal noise": lambda: dp.solve(LEARNER, DATA, LOOSE, dp.ObjectivePerturbation("gaussian")),
    "runs": lambda: dp.tune_repeated([LEARNER], DATA, LOOSE).release,
    "kinks": lambda: dp.solve(dp.load("hinge_svm", features=D), DATA, LOOSE, dp.OutputPerturbation("gaussian")),
    "statistics": lambda: dp.statistics(dp.load("ridge_regression", features=D), DATA, LOOSE),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RELEASES)
def test_a_saved_release_is_replayed_from_its_file(name, tmp_path, capsys):
    release, path = RELEASES[name](), tmp_path / "model.npz"
    assert "replayed" not in str(release.certificate)
    release.save(path)
    assert main(["check", str(path), "--json"]) == 0
    told, report = json.loads(capsys.readouterr().out), release.certificate.check()
    assert told["steps"] == report.steps > 5
    assert told["unreplayed"] == list(report.unreplayed) == []
    assert "replayed" in str(release.certificate)
    read = type(release).load(path).certificate
    assert read == release.certificate
    assert read.proof == release.certificate.proof
    assert "replayed" in str(read)


def test_the_command_replays_without_numpy(tmp_path):
    path, own = tmp_path / "model.npz", tmp_path / "proof.json"
    dp.solve(LEARNER, DATA, PURE).save(path)
    own.write_bytes(dp.verify(LEARNER, PURE, 500).proof)
    code = (
        "import sys; from dpconvex.cli.main import main; status = main(sys.argv[1:]); "
        "heavy = {'numpy', 'scipy', 'cvxpy', 'sklearn', 'jax'} & set(sys.modules); assert not heavy, heavy; sys.exit(status)"
    )

    def run(*arguments):
        return subprocess.run([sys.executable, "-c", code, "check", *arguments], capture_output=True, text=True)

    for file in (path, own):
        found = run(str(file))
        assert found.returncode == 0, found.stderr
        assert "replayed" in found.stdout
    assert json.loads(run(str(path), "--json").stdout)["unreplayed"] == []
    proof = json.loads(own.read_bytes())
    proof["claim"]["noise_scale"] = (0.5 * float.fromhex(proof["claim"]["noise_scale"])).hex()
    own.write_text(json.dumps(proof))
    assert run(str(own)).returncode == 1
    assert "costs epsilon" in run(str(own)).stderr
    assert run(str(tmp_path / "missing.npz")).returncode == 2


def with_member(content, name, change):
    """Return an archive in which one member is another."""
    found = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(found, "w") as new:
        for member in old.namelist():
            new.writestr(member, change(old.read(member)) if member == name else old.read(member))
    return found.getvalue()


def bolder(header):
    text = json.loads(str(np.load(io.BytesIO(header))))
    text["certificate"]["noise_scale"] *= 0.5
    buffer = io.BytesIO()
    np.save(buffer, np.array(json.dumps(text)))
    return buffer.getvalue()


DAMAGES = {
    "another certificate": ("header.npy", bolder),
    "another proof": ("proof.json", lambda proof: dp.verify(LEARNER, PURE, 501).proof),
    "no proof": ("proof.json", lambda proof: b"{}"),
    "no text": ("proof.json", lambda proof: b"\xff"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_file_whose_proof_is_of_another_certificate_is_refused(name, tmp_path):
    path = tmp_path / "model.npz"
    path.write_bytes(with_member(dp.solve(LEARNER, DATA, PURE).to_bytes(), *DAMAGES[name]))
    assert main(["check", str(path)]) == 1
    refused(dp.DPConvexError, "damaged", dp.Release.load, path)


def test_a_proof_that_does_not_follow_is_told_of(tmp_path):
    release, path = dp.solve(LEARNER, DATA, PURE), tmp_path / "model.npz"
    wrong = replace(release.certificate, noise_scale=0.5 * release.certificate.noise_scale)
    refused(Rejected, "costs epsilon", wrong.check)
    replace(release, certificate=wrong).save(path)
    loaded = dp.Release.load(path)
    assert "was checked, and rejected" in str(loaded.certificate)
    assert "was checked, and rejected" in repr(loaded)


def test_a_certificate_without_a_proof_says_so(tmp_path, capsys):
    bare = dp.verify(LEARNER, PURE, 500, proof=False)
    assert bare == dp.verify(LEARNER, PURE, 500)
    assert bare.proof is None
    assert "left out" in bare.check().unreplayed[0]
    release, path = dp.solve(LEARNER, DATA, PURE), tmp_path / "model.npz"
    replace(release, certificate=replace(release.certificate, writer=None)).save(path)
    assert dp.Release.load(path).certificate.proof is None
    assert "no proof" not in repr(release)
    assert "The file has no proof of this certificate" in repr(dp.Release.load(path))
    assert main(["check", str(path)]) == 1
    assert "it has no proof" in capsys.readouterr().err


def test_noise_is_wider_where_only_a_plainer_bound_is_replayed(monkeypatch):
    for sharp in ("chi_delta", "moving"):
        monkeypatch.setattr(f"dpconvex.checker.gaussian.{sharp}", lambda *_: 1)
    learner, mechanism = dp.load("logistic_regression", features=3), dp.ObjectivePerturbation("gaussian")
    sharp, plain = (dp.verify(learner, PROTECTED, 500, mechanism, checked=c) for c in (False, True))
    assert "on Gaussian noise" in sharp.check().unreplayed[0]
    assert not plain.check().unreplayed
    assert plain.privacy == PROTECTED
    assert 1.0 < plain.noise_scale / sharp.noise_scale < 1.5
    assert "of the guarantee" in " ".join(plain.advice)
    with pytest.raises(dp.NotPrivate, match="on Gaussian noise"):  # gradients of norms have no vertices
        dp.verify(dp.load("robust_location", features=3), LOOSE, 500, mechanism, checked=True)


def test_what_cannot_be_written_changes_nothing_else():
    certificate = replace(dp.verify(LEARNER, PURE, 500), writer=lambda c: 1 / 0)
    assert certificate.proof is None
    assert "ZeroDivisionError" in certificate.check().unreplayed[0]


def test_proofs_travel_with_pickles():
    certificate = dp.verify(LEARNER, LOOSE, 500)
    copied = pickle.loads(pickle.dumps(certificate))
    assert copied == certificate
    assert copied.proof == certificate.proof
    assert copied.check().steps > 5


def test_what_is_marked_as_not_private_fails_the_check_by_its_mark(tmp_path, capsys):
    """A seeded fit has a proof that follows: its noise is known all the same."""
    seeded, sums = dp.solve(LEARNER, DATA, PURE, seed=3), dp.solve_without_privacy(LEARNER, DATA)
    marks = {"seeded": ("the seed 3", seeded.to_bytes()), "bare": ("no noise", sums.to_bytes())}
    learnt = {"schema": {"learnt": {"epsilon": 1.0, "not_private_because": "the seed 4"}}}
    marks["schema"] = ("the seed 4", json.dumps(learnt).encode())
    for name, (mark, content) in marks.items():
        path = tmp_path / name
        path.write_bytes(content)
        assert main(["check", str(path)]) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"dpconvex check: {path}: NOT PRIVATE: ")
        assert mark in said
        assert main(["check", str(path), "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["message"].startswith(f"{path}: NOT PRIVATE")
    dp.solve(LEARNER, DATA, PURE).save(path)
    assert main(["check", str(path)]) == 0
    assert "nothing links them to the proof" in capsys.readouterr().out
