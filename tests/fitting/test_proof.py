"""Certificates have proofs, which travel with releases, and are replayed from the file alone."""

import io
import json
import pickle
import subprocess
import sys
import zipfile
from contextlib import nullcontext
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
    assert (read, read.proof) == (release.certificate, release.certificate.proof)
    assert "replayed" in str(read)


def test_the_command_replays_without_numpy(tmp_path):
    path, own = tmp_path / "model.npz", tmp_path / "proof.json"
    dp.solve(LEARNER, DATA, PURE).save(path)
    own.write_bytes(dp.verify(LEARNER, PURE, 500).proof)
    blocked = "import sys; sys.modules |= dict.fromkeys(['numpy', 'scipy', 'cvxpy', 'sklearn', 'jax']); "
    code = blocked + "from dpconvex.cli.main import main; sys.exit(main(sys.argv[1:]))"

    def run(*arguments):
        return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)

    for file in (path, own):
        found = run("check", str(file))
        assert found.returncode == 0, found.stderr
        assert "replayed" in found.stdout
        assert ("a load needs numpy, which is not installed" in found.stdout) == (file == path)
    assert json.loads(run("check", str(path), "--json").stdout)["unreplayed"] == []
    proof = json.loads(own.read_bytes())
    proof["claim"]["noise_scale"] = (0.5 * float.fromhex(proof["claim"]["noise_scale"])).hex()
    own.write_text(json.dumps(proof))
    found = run("check", str(own))
    assert (found.returncode, "costs epsilon" in found.stderr) == (1, True)
    assert run("check", str(tmp_path / "missing.npz")).returncode == 2
    for command in (["certificate", str(path)], ["budget", "show", str(path)]):
        found = run(*command)
        assert (found.returncode, "pip install numpy" in found.stderr, "Traceback" in found.stderr) == (2, True, False)


def with_member(content, name, change):
    """Return an archive in which one member is another."""
    found = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(found, "w") as new:
        for member in old.namelist():
            new.writestr(member, change(old.read(member)) if member == name else old.read(member))
    return found.getvalue()


def array(change):
    """Return a function that applies a change to the bytes of a member."""

    def changed(member):
        buffer = io.BytesIO()
        np.save(buffer, change(np.load(io.BytesIO(member))))
        return buffer.getvalue()

    return changed


def header(change):
    return array(lambda text: np.array(json.dumps(change(json.loads(str(text))))))


def bolder(fields):
    fields["certificate"]["noise_scale"] *= 0.5
    return fields


DAMAGES = {
    "another certificate": ("header.npy", header(bolder)),
    "an unknown key": ("header.npy", header(lambda fields: fields | {"surplus": 1})),
    "no numbers": ("0.npy", array(lambda w: np.nan * w)),
    "whole numbers": ("0.npy", array(lambda w: w.astype(int))),
    "a longer member": ("0.npy", lambda member: member + b"0"),
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


def test_a_file_with_a_further_member_is_refused(tmp_path):
    dp.solve(LEARNER, DATA, PURE).save(path := tmp_path / "model.npz")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("further.txt", "text")
    assert main(["check", str(path)]) == 1
    refused(dp.DPConvexError, "unexpected member", dp.Release.load, path)


def test_numbers_of_which_the_proof_does_not_speak_are_refused(tmp_path, capsys):
    release, path = dp.solve(LEARNER, DATA, PURE), tmp_path / "model.npz"
    for known, options in ((release, {"template": dp.load}), (replace(release, source=None), {})):
        path.write_bytes(with_member(known.to_bytes(), "0.npy", array(lambda w: np.append(w, 1.0))))
        assert main(["check", str(path)]) == 1
        refused(dp.DPConvexError, "but released were", dp.Release.load, path, **options)
    sums = RELEASES["statistics"]()
    first, *others = sums.moments.kinds
    replace(sums, moments=replace(sums.moments, kinds=(replace(first, scale=2 * first.scale), *others))).save(path)
    assert main(["check", str(path)]) == 1
    refused(dp.DPConvexError, "for other moments", dp.Statistics.load, path)


def test_the_command_reads_certificates_as_other_commands_print_them(tmp_path, capsys):
    model, file = str(tmp_path / "model.npz"), tmp_path / "certificate.json"
    asked = ["verify", "logistic_regression", "--set", "features=2", "--size", "99", "--epsilon", "1", "--json"]
    for seed in (None, 3):
        dp.solve(LEARNER, DATA, PURE, seed=seed).save(model)
        for command in (asked, ["certificate", model, "--json"]):
            assert main(command) == 0
            file.write_text(capsys.readouterr().out, encoding="utf-8")
            private = seed is None or command is asked
            assert main(["check", str(file)]) == (not private)
            assert ("NOT PRIVATE: " in capsys.readouterr().err) != private
            with nullcontext() if private else pytest.raises(dp.DPConvexError, match="NOT PRIVATE"):
                dp.Certificate.from_json(file.read_text(encoding="utf-8"))
    whole, facts = json.loads(dp.solve(LEARNER, DATA, PURE).certificate.to_json()), []
    for beside, code in (({}, 0), ({"private": True, "risk": {"0.01": 0.0}}, 0), ({"private": False}, 1)):
        file.write_text(json.dumps(whole | beside), encoding="utf-8")
        assert main(["check", "--json", str(file)]) == code
        facts.append(len(json.loads(capsys.readouterr().out).get("trusted", ())))
    assert facts == [facts[0], facts[0] + 1, 0]  # what stands beside a certificate is not checked


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
    assert (copied, copied.proof) == (certificate, certificate.proof)
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
