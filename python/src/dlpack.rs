//! Memory handed to a framework by DLPack: no byte is copied, and the framework's last reference gives it back.
//!
//! The deleter runs on whatever thread drops a tensor, with or without the GIL, in a fork()ed child or at the
//! interpreter's end; it drops an `Arc` and never asks for the GIL. The capsule is of the first kind (`dltensor`),
//! which every framework takes and writes to.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::batch::{Block, Number, View};

/// The host's memory, in DLPack's numbers.
pub const CPU: (i32, i32) = (1, 0);
const FRESH: &CStr = c"dltensor";

#[repr(C)]
struct DLDevice {
    device_type: i32,
    device_id: i32,
}

#[repr(C)]
struct DLDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DLTensor {
    data: *mut c_void,
    device: DLDevice,
    ndim: i32,
    dtype: DLDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct DLManagedTensor {
    dl_tensor: DLTensor,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// What a capsule keeps alive.
struct Held {
    tensor: DLManagedTensor,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _owner: Arc<Block>,
}

/// A capsule over a view of a block.
pub fn capsule(py: Python<'_>, owner: &Arc<Block>, view: &View) -> PyResult<Py<PyAny>> {
    let shape: Vec<i64> = view.shape.iter().map(|&n| n as i64).collect();
    let strides: Vec<i64> = view.strides.iter().map(|&n| n as i64).collect();
    let (code, bits) = match view.number {
        Number::U8 => (1, 8),
        Number::I16 => (0, 16),
        Number::F16 => (2, 16),
        Number::F32 => (2, 32),
        Number::Bf16 => (4, 16),
    };
    let dl_tensor = DLTensor {
        data: view.address as *mut c_void,
        device: DLDevice { device_type: CPU.0, device_id: CPU.1 },
        ndim: shape.len() as i32,
        dtype: DLDataType { code, bits, lanes: 1 },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let tensor = DLManagedTensor { dl_tensor, manager_ctx: std::ptr::null_mut(), deleter: Some(delete) };
    let held = Box::into_raw(Box::new(Held { tensor, shape, strides, _owner: Arc::clone(owner) }));
    // SAFETY: `held` was made a line ago and nobody else has it. The vectors do not move while it lives.
    let tensor = unsafe {
        (*held).tensor.dl_tensor.shape = (*held).shape.as_mut_ptr();
        (*held).tensor.dl_tensor.strides = (*held).strides.as_mut_ptr();
        (*held).tensor.manager_ctx = held.cast();
        &raw mut (*held).tensor
    };
    // SAFETY: the name is static, the pointer is not null, and the destructor takes what is put in here.
    let capsule = unsafe { ffi::PyCapsule_New(tensor.cast(), FRESH.as_ptr(), Some(forget)) };
    // SAFETY: a new reference, or null with an exception set.
    let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) };
    if capsule.is_err() {
        // SAFETY: no capsule has it.
        unsafe { delete(tensor) };
    }
    capsule.map(Bound::unbind)
}

/// DLPack's deleter: see the head of the file.
///
/// # Safety
/// `tensor` is one that [`capsule`] made, and nobody uses it any more.
unsafe extern "C" fn delete(tensor: *mut DLManagedTensor) {
    // SAFETY: the context is the box that the tensor lies in; it is taken once.
    drop(unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Held>()) });
}

/// The capsule's destructor. A framework that took the tensor over has renamed the capsule, and calls the deleter
/// itself.
///
/// # Safety
/// Called by the interpreter with a capsule that [`capsule`] made.
unsafe extern "C" fn forget(capsule: *mut ffi::PyObject) {
    // SAFETY: as the caller says; a capsule of that name holds our tensor.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, FRESH.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, FRESH.as_ptr()).cast());
        }
    }
}
