"""On what PyTorch runs, and how exact its products are.

float32: products of float32. tf32: a GPU rounds their factors to 10 bits. bf16: matrix
products and convolutions on bfloat16 (autocast). Weights, sums over clients and the step
itself are float32 in all three.
"""
# pyright: reportMissingImports=false

import argparse
from contextlib import AbstractContextManager
from typing import Any

import common
import torch

PRECISIONS = ("float32", "tf32", "bf16")


def add_options(options: argparse.ArgumentParser) -> None:
    """The options of every script on PyTorch that can use a GPU."""
    options.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options.add_argument(
        "--precision", choices=PRECISIONS, default="float32", help="of products"
    )
    options.add_argument(
        "--compile", action="store_true", help="torch.compile what is done at each step"
    )
    options.add_argument("--threads", type=int, default=0, help="0: PyTorch's default")


def prepare(options: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Sets PyTorch up; what it cannot do ends with a sentence."""
    if arguments.device == "cuda" and not torch.cuda.is_available():
        options.error("--device cuda: PyTorch finds no GPU here; leave it out.")
    if arguments.device == "cpu" and arguments.precision == "tf32":
        options.error("--precision tf32: a CPU has none; write float32 or bf16.")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    rounded = arguments.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = rounded
    torch.backends.cudnn.allow_tf32 = rounded
    torch.backends.cudnn.benchmark = True  # it tries its algorithms on the first steps


def products(arguments: argparse.Namespace) -> AbstractContextManager:
    """In which a loss is computed."""
    return torch.autocast(
        arguments.device,
        torch.bfloat16,
        enabled=arguments.precision == "bf16",
        cache_enabled=False,  # a weight is used once, and under vmap may not be kept
    )


def wait(arguments: argparse.Namespace) -> None:
    """Until all that was asked for is done: a GPU is sent work, not waited for."""
    if arguments.device == "cuda":
        torch.cuda.synchronize()


def figures(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a line says of all this."""
    told = {
        "device": arguments.device,
        "precision": arguments.precision,
        "compile": arguments.compile,
        "threads": torch.get_num_threads(),
    }
    if arguments.device == "cuda":
        gpu = {"platform": "gpu", "device": torch.cuda.get_device_name()}
        told["hardware"] = common.stopwatch.processor() | gpu
        told["peak_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
    return told
