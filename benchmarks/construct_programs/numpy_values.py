"""NumPy: on shapes, on values of tensors, on arrays."""

from __future__ import annotations

import numpy as np
import torch


def numpy_on_shape(x):
    return x * np.prod(x.shape) + np.sqrt(x.shape[-1])


def numpy_arange_to_tensor(x):
    return x + torch.from_numpy(np.arange(x.shape[1], dtype=np.float32))


def numpy_linspace_and_meshgrid(x):
    grid = np.stack(np.meshgrid(np.linspace(0, 1, 2), np.arange(3), indexing="ij"))
    return x + torch.from_numpy(grid).sum(0)


def tensor_to_numpy(x):
    return x.numpy()


def numpy_function_of_tensor_values(x):
    return np.sin(x.numpy()) + 1


def numpy_round_trip(x):
    return torch.from_numpy(x.numpy() * 2) + x


def numpy_asarray_of_tensor(x):
    return np.asarray(x).sum(axis=0)


def numpy_scalar_result(x):
    return np.sum(x.numpy())


def numpy_mean_to_float(x):
    return x * float(x.numpy().mean())


def numpy_promotion(x):
    return x.numpy() + np.arange(3), x.numpy() * 2, x.numpy() * np.float64(2)


def numpy_inplace_shares(x):
    array = x.numpy()
    array += 1
    array[0] = 7
    return x * 2


def numpy_indexing(x):
    array = x.numpy()
    return array[array > 1], array[:, ::2], array[1, 2], array[[0, 1], [1, 2]]


def numpy_reductions(x):
    array = x.numpy()
    return array.max(axis=1), array.argmin(), array.std(), np.cumsum(array, axis=1), array.any(), array.mean(0)


def numpy_shapes(x):
    array = x.numpy()
    parts = np.concatenate([array, array]), np.transpose(array), array.reshape(-1), array[None], array.T.copy()
    return parts, np.expand_dims(array, 0), np.squeeze(array[None]), np.stack([array, array], axis=-1)


def numpy_linear_algebra(x):
    array = x.numpy()
    return array @ array.T, np.dot(array, array.T), np.linalg.norm(array), np.einsum("ij,ij->i", array, array)


def numpy_where_clip(x):
    array = x.numpy()
    return np.where(array > 1, array, 0), np.clip(array, 1, 2), np.maximum(array, 2), np.abs(-array)


def numpy_attributes(x):
    array = x.numpy()
    return x * array.ndim + array.shape[0] + array.size + array.itemsize + (array.dtype == np.float32)


def numpy_astype(x):
    return x.numpy().astype(np.int64), x.numpy().astype("float64") / 3


def numpy_constructors(x):
    return np.zeros((2, 3)) + np.ones(3) + np.full((2, 1), 2) + np.eye(2, 3) + x.numpy()


CONSTANT = np.array([1.0, 2.0, 3.0], dtype=np.float32)


def numpy_outside_array(x):
    return x + torch.from_numpy(CONSTANT)


def numpy_outside_array_arithmetic(x):
    return torch.tensor(CONSTANT * 2) + x


def numpy_random_seeded(x):
    np.random.seed(0)
    return x * np.random.rand()


def numpy_random_generator(x):
    generator = np.random.default_rng(3)
    return x * generator.random()


def numpy_sort_unique(x):
    return np.sort(x.numpy(), axis=0), np.argsort(x.numpy()), np.unique(x.numpy())


def numpy_array_of_list(x):
    return torch.tensor(np.array([1.0, 2.0, 3.0])) * x


def numpy_dtype_objects(x):
    return x * np.dtype("float32").itemsize + np.finfo(np.float32).eps + np.iinfo(np.int32).max * 0


def numpy_iteration(x):
    return sum(row.sum() for row in x.numpy()), len(x.numpy())


def numpy_tolist(x):
    return x * len(x.numpy().tolist())
