//! One iteration of training without communication, as it was recorded.

use sumpter_types::Dtype;

use crate::coding::{Codec, Coding};
use crate::error::within;
use crate::{Addition, WhatifError};

/// Times that are added up in another order may exceed their total by rounding.
const ROUNDING: f64 = 1.0 + 1e-6;

/// A layer of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// Its part of the forward pass, if it is known.
    pub forward_s: Option<f64>,
}

/// The gradient of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tensor {
    /// Its layer, an index of [`Profile::layers`].
    pub layer: usize,
    /// Its size.
    pub bytes: u64,
    /// When it is ready, since the beginning of the backward pass.
    pub ready_s: f64,
}

/// What one worker does in one iteration. Invariants: times are finite and not negative, the
/// backward pass fits into the iteration and makes every gradient ready, sizes are positive.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    iteration_s: f64,
    backward_s: f64,
    layers: Vec<Layer>,
    tensors: Vec<Tensor>,
    by_readiness: Vec<usize>,
    addition: Option<Addition>,
    /// By tensor.
    coding: Vec<Coding>,
}

impl Profile {
    /// `layers` and `tensors` are in forward order. Without `addition`, additions take no time.
    ///
    /// # Errors
    /// A value that breaks an invariant of the type, or no tensor.
    pub fn new(
        iteration_s: f64,
        backward_s: f64,
        layers: Vec<Layer>,
        tensors: Vec<Tensor>,
        addition: Option<Addition>,
    ) -> Result<Self, WhatifError> {
        let expected = "a finite number of seconds, more than zero";
        within("iteration_s", iteration_s, f64::MIN_POSITIVE..=f64::MAX, expected)?;
        let expected = "a number of seconds from 0 to iteration_s";
        within("backward_s", backward_s, 0.0..=iteration_s * ROUNDING, expected)?;
        for (index, layer) in layers.iter().enumerate() {
            let expected = "a number of seconds from 0 to iteration_s";
            let field = format!("layers[{index}].forward_s");
            within(field, layer.forward_s.unwrap_or(0.0), 0.0..=iteration_s * ROUNDING, expected)?;
        }
        if tensors.is_empty() {
            return Err(WhatifError::field("tensors", "empty", "at least one tensor"));
        }
        for (index, tensor) in tensors.iter().enumerate() {
            check(index, tensor, backward_s, layers.len())?;
        }
        let total = tensors.iter().try_fold(0_u64, |sum, tensor| sum.checked_add(tensor.bytes));
        if total.is_none_or(|total| total > sumpter_plan::MAX_MODEL_BYTES) {
            return Err(WhatifError::field("bytes of all tensors", "more", "at most one EiB"));
        }
        let mut by_readiness: Vec<usize> = (0..tensors.len()).rev().collect();
        by_readiness.sort_by(|&a, &b| tensors[a].ready_s.total_cmp(&tensors[b].ready_s));
        let coding = vec![Coding::PLAIN; tensors.len()];
        Ok(Self { iteration_s, backward_s, layers, tensors, by_readiness, addition, coding })
    }

    /// One iteration without communication.
    #[must_use]
    pub fn iteration_s(&self) -> f64 {
        self.iteration_s
    }

    /// Its backward pass.
    #[must_use]
    pub fn backward_s(&self) -> f64 {
        self.backward_s
    }

    /// The layers, in forward order.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The gradients, in forward order.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Indices of the tensors in the order in which they become ready; of those that do so at
    /// once, the last in forward order first.
    #[must_use]
    pub fn by_readiness(&self) -> &[usize] {
        &self.by_readiness
    }

    /// Seconds to add two vectors of `bytes`.
    #[must_use]
    pub fn addition_s(&self, bytes: f64) -> f64 {
        self.addition.as_ref().map_or(0.0, |addition| addition.seconds(bytes))
    }

    /// The same iteration with a codec for its gradients, whose elements are of these types, in
    /// forward order.
    ///
    /// # Errors
    /// A tensor that the codec does not fit, or another number of types than tensors.
    pub fn coded(&self, codec: &Codec, dtypes: &[Dtype]) -> Result<Self, WhatifError> {
        if dtypes.len() != self.tensors.len() {
            let expected = format!("{}, one of each tensor", self.tensors.len());
            return Err(WhatifError::field("the number of types", dtypes.len(), expected));
        }
        let tensors = self.tensors.iter().zip(dtypes);
        let coding = tensors.map(|(tensor, dtype)| codec.coding(tensor.bytes, *dtype));
        Ok(Self { coding: coding.collect::<Result<_, _>>()?, ..self.clone() })
    }

    /// What a codec makes of a tensor.
    pub(crate) fn coding(&self, tensor: usize) -> &Coding {
        &self.coding[tensor]
    }

    /// Whether a codec is in use.
    pub(crate) fn is_coded(&self) -> bool {
        self.coding.iter().any(|coding| *coding != Coding::PLAIN)
    }

    /// The same iteration if the codec took no time.
    #[must_use]
    pub(crate) fn with_free_codec(&self) -> Self {
        Self { coding: self.coding.iter().map(Coding::free).collect(), ..self.clone() }
    }

    /// Whether additions take time.
    pub(crate) fn has_addition(&self) -> bool {
        self.addition.is_some()
    }

    /// The same iteration if additions took no time.
    #[must_use]
    pub fn without_addition(&self) -> Self {
        Self { addition: None, ..self.clone() }
    }
}

fn check(index: usize, tensor: &Tensor, backward_s: f64, layers: usize) -> Result<(), WhatifError> {
    if tensor.bytes == 0 {
        let field = format!("tensors[{index}].bytes");
        return Err(WhatifError::field(field, 0, "a whole number of 1 or more"));
    }
    let field = format!("tensors[{index}].ready_s");
    let expected = "a number of seconds from 0 to backward_s";
    within(field, tensor.ready_s, 0.0..=backward_s * ROUNDING, expected)?;
    if tensor.layer >= layers {
        let field = format!("tensors[{index}].layer");
        let expected = format!("the index of one of {layers} layers");
        return Err(WhatifError::field(field, tensor.layer, expected));
    }
    Ok(())
}
