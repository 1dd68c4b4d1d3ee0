package api

// register makes the operations.
func (h *Handler) register() {
	h.registerInstallation()
	h.registerConsumers()
	h.registerRecords()
	h.registerEvents()
	h.registerDeadLetters()
	h.registerBulk()
	h.registerWorkers()
	h.registerAudit()
	h.registerTokens()
	h.registerChanges()
}
