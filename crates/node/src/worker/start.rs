//! How the event loop reports that the run has started.

use crossbeam_channel::Sender;
use sumpter_membership::ClusterView;

use crate::error::NodeError;

/// How the event loop reports that the run has started, or why it cannot.
#[derive(Debug)]
pub(crate) struct StartSignal(Sender<Result<ClusterView, NodeError>>);

impl StartSignal {
    pub(crate) fn new(sender: Sender<Result<ClusterView, NodeError>>) -> StartSignal {
        StartSignal(sender)
    }

    pub(crate) fn begin(self, view: ClusterView) {
        // The caller may have given up.
        let _ = self.0.send(Ok(view));
    }

    pub(crate) fn refuse(self, error: NodeError) {
        let _ = self.0.send(Err(error));
    }
}
