//! Update rules: how the gradient of a round changes a variable.

/// An optimizer's arithmetic on one element, without its hyper-parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Stochastic gradient descent.
    Sgd {
        /// With a momentum buffer.
        momentum: bool,
        /// The step looks ahead by the momentum; without a buffer it has no meaning.
        nesterov: bool,
    },
    /// Adam, and AdamW, whose weight decay is [`Update::shrink`].
    Adam {
        /// The denominator never falls.
        amsgrad: bool,
    },
    /// RMSprop.
    RmsProp {
        /// The mean is taken off the variance.
        centered: bool,
        /// With a momentum buffer.
        momentum: bool,
    },
    /// Adagrad.
    Adagrad,
    /// Lion: the sign of an interpolated momentum.
    Lion,
}

/// The most slots that a rule has.
pub const MAX_SLOTS: usize = 3;

impl Rule {
    /// Every rule, in the order of codes.
    pub const ALL: [Rule; 11] = [
        Rule::Sgd { momentum: false, nesterov: false },
        Rule::Sgd { momentum: true, nesterov: false },
        Rule::Sgd { momentum: true, nesterov: true },
        Rule::Adam { amsgrad: false },
        Rule::Adam { amsgrad: true },
        Rule::RmsProp { centered: false, momentum: false },
        Rule::RmsProp { centered: false, momentum: true },
        Rule::RmsProp { centered: true, momentum: false },
        Rule::RmsProp { centered: true, momentum: true },
        Rule::Adagrad,
        Rule::Lion,
    ];

    /// The code on the wire, from 1: 0 is no rule.
    ///
    /// # Panics
    /// For Nesterov without momentum, which is no rule.
    #[must_use]
    pub fn code(self) -> u8 {
        let at = Rule::ALL.iter().position(|rule| *rule == self);
        at.expect("Nesterov needs momentum") as u8 + 1
    }

    /// The rule of a wire code, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Rule> {
        Rule::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// The rule's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Rule::Sgd { momentum: false, .. } => "sgd",
            Rule::Sgd { nesterov: false, .. } => "sgd_momentum",
            Rule::Sgd { .. } => "sgd_nesterov",
            Rule::Adam { amsgrad: false } => "adam",
            Rule::Adam { amsgrad: true } => "adam_amsgrad",
            Rule::RmsProp { centered: false, momentum: false } => "rmsprop",
            Rule::RmsProp { centered: false, momentum: true } => "rmsprop_momentum",
            Rule::RmsProp { centered: true, momentum: false } => "rmsprop_centered",
            Rule::RmsProp { .. } => "rmsprop_centered_momentum",
            Rule::Adagrad => "adagrad",
            Rule::Lion => "lion",
        }
    }

    /// The rule of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| rule.name() == name)
    }

    /// What the rule keeps of each element beside the value, in this order.
    #[must_use]
    pub fn slots(self) -> &'static [&'static str] {
        match self {
            Rule::Sgd { momentum: false, .. } => &[],
            Rule::Sgd { .. } => &["momentum_buffer"],
            Rule::Adam { amsgrad: false } => &["exp_avg", "exp_avg_sq"],
            Rule::Adam { .. } => &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"],
            Rule::RmsProp { centered: false, momentum: false } => &["square_avg"],
            Rule::RmsProp { centered: false, .. } => &["square_avg", "momentum_buffer"],
            Rule::RmsProp { momentum: false, .. } => &["square_avg", "grad_avg"],
            Rule::RmsProp { .. } => &["square_avg", "grad_avg", "momentum_buffer"],
            Rule::Adagrad => &["sum"],
            Rule::Lion => &["exp_avg"],
        }
    }
}

/// What a round does with its rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// The rule is applied with the coefficients.
    #[default]
    Apply = 0,
    /// To be decided, from the norm of the gradient.
    Defer = 1,
    /// Nothing: value and slots stay as they are.
    Skip = 2,
}

impl Action {
    /// The action with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Action> {
        [Action::Apply, Action::Defer, Action::Skip].into_iter().find(|a| *a as u8 == code)
    }
}

/// A rule with the coefficients of one round, as the front has derived them from the
/// hyper-parameters and the number of the step; so all who apply it need no transcendental
/// functions, which differ from one C library to the next.
///
/// Operations are those of `torch.optim` with `foreach=False`, in its order. `g` is the gradient
/// and `w` the value. What is neutral is left out, and so costs no rounding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// The rule.
    pub rule: Rule,
    /// Whether the rule is applied, and whether that is known.
    pub action: Action,
    /// `g = scale * g` before all else: the inverse of a loss scale, the factor of a clipped norm,
    /// or -1 to maximize. 1 is neutral.
    pub scale: f64,
    /// `g = g + decay * w`: the L2 penalty. 0 is neutral.
    pub decay: f64,
    /// `w = shrink * w`: decoupled weight decay, `1 - lr * weight_decay`. 1 is neutral.
    pub shrink: f64,
    /// What the first average keeps of itself: momentum, Lion's first beta.
    pub keep: f64,
    /// What the first average takes of the gradient: `1 - dampening`, `1 - beta1`.
    pub take: f64,
    /// What the second average keeps of itself: `beta2`, RMSprop's alpha.
    pub keep_square: f64,
    /// What the second average takes: `1 - beta2`, `1 - alpha`.
    pub take_square: f64,
    /// What the root of the second average is divided by: Adam's `sqrt(1 - beta2^t)`.
    pub divisor: f64,
    /// Added to a denominator.
    pub epsilon: f64,
    /// What the direction is multiplied by before it is added to the value: `-lr`, for Adam
    /// `-lr / (1 - beta1^t)`, for Adagrad `-lr / (1 + (t - 1) * lr_decay)`.
    pub step: f64,
}

impl Update {
    /// How many coefficients there are.
    pub const COEFFICIENTS: usize = 10;

    /// What they are called, in the order of the fields.
    pub const NAMES: [&str; Update::COEFFICIENTS] = [
        "scale",
        "decay",
        "shrink",
        "keep",
        "take",
        "keep_square",
        "take_square",
        "divisor",
        "epsilon",
        "step",
    ];

    /// A rule that changes nothing but the slots.
    #[must_use]
    pub fn new(rule: Rule) -> Update {
        Update {
            rule,
            action: Action::Apply,
            scale: 1.0,
            decay: 0.0,
            shrink: 1.0,
            keep: 0.0,
            take: 1.0,
            keep_square: 0.0,
            take_square: 1.0,
            divisor: 1.0,
            epsilon: 0.0,
            step: 0.0,
        }
    }

    /// A round that leaves value and slots as they are.
    #[must_use]
    pub fn skip(rule: Rule) -> Update {
        Update { action: Action::Skip, ..Update::new(rule) }
    }

    /// A round whose coefficients are decided once its gradient has been summed.
    #[must_use]
    pub fn defer(rule: Rule) -> Update {
        Update { action: Action::Defer, ..Update::new(rule) }
    }

    /// Whether it is known what the round does.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        self.action != Action::Defer
    }

    /// The coefficients, in the order of the fields.
    #[must_use]
    pub fn coefficients(&self) -> [f64; Update::COEFFICIENTS] {
        let Update { scale, decay, shrink, keep, take, keep_square, take_square, .. } = *self;
        let Update { divisor, epsilon, step, .. } = *self;
        [scale, decay, shrink, keep, take, keep_square, take_square, divisor, epsilon, step]
    }

    /// A rule with these coefficients; `None` if one is not finite or the divisor is 0.
    #[must_use]
    pub fn from_coefficients(
        rule: Rule,
        coefficients: [f64; Update::COEFFICIENTS],
    ) -> Option<Update> {
        let [scale, decay, shrink, keep, take, keep_square, take_square, rest @ ..] = coefficients;
        let [divisor, epsilon, step] = rest;
        let valid = coefficients.iter().all(|c| c.is_finite()) && divisor != 0.0;
        valid.then_some(Update {
            rule,
            action: Action::Apply,
            scale,
            decay,
            shrink,
            keep,
            take,
            keep_square,
            take_square,
            divisor,
            epsilon,
            step,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_lead_back_to_their_rules() {
        for rule in Rule::ALL {
            assert_eq!(Rule::from_code(rule.code()), Some(rule));
            assert_eq!(Rule::from_name(rule.name()), Some(rule));
            assert!(rule.slots().len() <= MAX_SLOTS);
        }
        assert_eq!(Rule::from_code(0), None);
        assert_eq!(Rule::from_code(Rule::ALL.len() as u8 + 1), None);
        assert_eq!(Rule::from_name("newton"), None);
    }

    #[test]
    fn coefficients_lead_back_to_their_update() {
        let update = Update { step: -0.1, divisor: 0.5, ..Update::new(Rule::Lion) };
        let coefficients = update.coefficients();
        assert_eq!(Update::from_coefficients(Rule::Lion, coefficients), Some(update));
        for (at, wrong) in [(0, f64::NAN), (9, f64::INFINITY), (7, 0.0)] {
            let mut coefficients = coefficients;
            coefficients[at] = wrong;
            assert_eq!(Update::from_coefficients(Rule::Lion, coefficients), None);
        }
    }
}
