#!/usr/bin/env python3
"""Writes a Homebrew formula for a release: `python packaging/homebrew.py URL FILE > sapo-edge.rb`.

URL is where the sdist FILE can be downloaded. On a Mac with Apple silicon the program brings MLX, neither torch nor a
compiled llama.cpp; its libraries come from PyPI as wheels. The formula was not tried: no Mac was at hand.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

FORMULA = """\
class SapoEdge < Formula
  include Language::Python::Virtualenv

  desc "Collective RL post-training of small language models"
  homepage "https://arxiv.org/abs/2509.08721"
  url "{url}"
  sha256 "{digest}"
  license "Apache-2.0"

  depends_on "python@3.12"

  def install
    virtualenv_create(libexec, "python3.12", without_pip: false)
    system libexec/"bin/python", "-m", "pip", "install", "--quiet", buildpath
    bin.install_symlink libexec/"bin/sapo"
    (man1/"sapo.1").write Utils.safe_popen_read(bin/"sapo", "man")
  end

  service do
    run [opt_bin/"sapo", "run", "--json"]
    keep_alive successful_exit: false
    log_path File::NULL
    error_log_path var/"log/sapo-edge.log"
  end

  test do
    assert_match "sapo-edge #{{version}}", shell_output("#{{bin}}/sapo --version")
  end
end
"""


def formula(url: str, archive: Path) -> str:
    """The formula of an sdist.

    Raises:
        ValueError: if the URL can't stand in a formula.
    """
    if re.fullmatch(r"https://[\w./%+~-]+", url, re.ASCII) is None:
        raise ValueError("the URL has to begin with https:// and hold nothing unusual")
    return FORMULA.format(url=url, digest=hashlib.sha256(archive.read_bytes()).hexdigest())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(formula(sys.argv[1], Path(sys.argv[2])), end="")
