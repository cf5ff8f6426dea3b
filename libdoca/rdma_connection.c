// SPDX-License-Identifier: Apache-2.0

/* Connections of RDMA: by details that both sides exchange, and by address. */

#include "skin.h"

#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"

struct doca_rdma_connection *emu_rdma_connection_new(struct doca_rdma *rdma, uint32_t core,
						     enum emu_rdma_state state)
{
	struct doca_rdma_connection *connection;

	if (rdma->num_connections == rdma->max_connections)
		return NULL;
	connection = emu_new(EMU_RDMA_CONNECTION, sizeof *connection);
	if (connection == NULL)
		return NULL;
	connection->rdma = rdma;
	connection->core = core;
	connection->state = state;
	connection->id = ++rdma->last_id;
	connection->next = rdma->connections;
	rdma->connections = connection;
	rdma->num_connections++;
	return connection;
}

void emu_rdma_connection_free(struct doca_rdma_connection *connection)
{
	struct doca_rdma *rdma = connection->rdma;
	struct doca_rdma_connection **link = &rdma->connections;

	while (*link != connection)
		link = &(*link)->next;
	*link = connection->next;
	rdma->num_connections--;
	emuRdmaEndConnection(connection->core);
	if (connection->addr.magic != 0)
		connection->addr.magic = EMU_DEAD;
	emu_bury(connection, connection->details);
}

void emu_rdma_set_addr(struct doca_rdma_connection *connection, enum doca_rdma_addr_type type,
		       const char *text, uint16_t port)
{
	connection->addr = (struct doca_rdma_addr){
		.magic = EMU_RDMA_ADDR, .of_connection = true, .port = port, .type = type};
	snprintf(connection->addr.text, sizeof connection->addr.text, "%s", text);
}

/* Enters the engine of a running context. */
static doca_error_t enter(struct doca_rdma *rdma, const char *function)
{
	if (emu_ctx_of(rdma, EMU_CTX_RDMA, function) == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	if (!emu_enter_pe(rdma->ctx.pe, function))
		return DOCA_ERROR_BAD_STATE;
	if (rdma->ctx.state == DOCA_CTX_STATE_RUNNING)
		return DOCA_SUCCESS;
	emu_misuse(function, "the rdma is not running");
	emu_leave_pe(rdma->ctx.pe);
	return DOCA_ERROR_BAD_STATE;
}

static doca_error_t leave(struct doca_rdma *rdma, doca_error_t result)
{
	emu_leave_pe(rdma->ctx.pe);
	return result;
}

/* By details. */

doca_error_t emu_doca_rdma_export(struct doca_rdma *rdma, const void **details, size_t *size,
				  struct doca_rdma_connection **connection)
{
	struct doca_rdma_connection *created = NULL;
	doca_error_t result;

	if (!EMU_HAS(details) || !EMU_HAS(size) || !EMU_HAS(connection))
		return DOCA_ERROR_INVALID_VALUE;
	result = enter(rdma, __func__);
	if (result != DOCA_SUCCESS)
		return result;
	result = (doca_error_t)emuRdmaExport(&rdma->ctx, &created);
	if (result == DOCA_SUCCESS) {
		*details = created->details;
		*size = created->details_size;
		*connection = created;
	}
	return leave(rdma, result);
}

doca_error_t emu_doca_rdma_connect(struct doca_rdma *rdma, const void *peer_details, size_t size,
				   struct doca_rdma_connection *connection)
{
	doca_error_t result;

	if (!EMU_HAS(peer_details) || !EMU_IS(connection, EMU_RDMA_CONNECTION))
		return DOCA_ERROR_INVALID_VALUE;
	result = enter(rdma, __func__);
	if (result != DOCA_SUCCESS)
		return result;
	if (connection->rdma != rdma || connection->state != EMU_RDMA_EXPORTED) {
		emu_misuse(__func__, connection->rdma != rdma
					     ? "the connection is another context's"
					     : "the connection has been connected before, or not "
					       "come from doca_rdma_export");
		return leave(rdma, connection->rdma != rdma ? DOCA_ERROR_INVALID_VALUE
							     : DOCA_ERROR_BAD_STATE);
	}
	result = (doca_error_t)emuRdmaConnect(connection, (void *)peer_details, size);
	if (result == DOCA_SUCCESS)
		connection->state = EMU_RDMA_CONNECTING;
	return leave(rdma, result);
}

/* By address. */

doca_error_t emu_doca_rdma_addr_create(enum doca_rdma_addr_type type, const char *address,
				       uint16_t port, struct doca_rdma_addr **addr)
{
	struct doca_rdma_addr *created;

	if (!EMU_HAS(address) || !EMU_HAS(addr))
		return DOCA_ERROR_INVALID_VALUE;
	if (type > DOCA_RDMA_ADDR_TYPE_GID || strnlen(address, sizeof created->text) ==
						      sizeof created->text ||
	    !emuIsAddress((char *)address, type == DOCA_RDMA_ADDR_TYPE_IPv4)) {
		emu_misuse(__func__, "\"%.64s\" is no address of type %u", address,
			   (unsigned int)type);
		return DOCA_ERROR_INVALID_VALUE;
	}
	created = emu_new(EMU_RDMA_ADDR, sizeof *created);
	if (created == NULL)
		return DOCA_ERROR_NO_MEMORY;
	created->port = port;
	created->type = type;
	strcpy(created->text, address);
	*addr = created;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_rdma_addr_destroy(struct doca_rdma_addr *addr)
{
	if (!EMU_IS(addr, EMU_RDMA_ADDR))
		return DOCA_ERROR_INVALID_VALUE;
	if (addr->of_connection) {
		emu_misuse(__func__, "the address belongs to a connection");
		return DOCA_ERROR_BAD_STATE;
	}
	emu_bury(addr, NULL);
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_rdma_addr_get_params(struct doca_rdma_addr *addr,
					   enum doca_rdma_addr_type *type, const char **address,
					   uint16_t *port)
{
	if (!EMU_IS(addr, EMU_RDMA_ADDR) || !EMU_HAS(type) || !EMU_HAS(address) || !EMU_HAS(port))
		return DOCA_ERROR_INVALID_VALUE;
	*type = addr->type;
	*address = addr->text;
	*port = addr->port;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_rdma_connection_get_addr(const struct doca_rdma_connection *connection,
					       struct doca_rdma_addr **addr)
{
	if (!EMU_IS(connection, EMU_RDMA_CONNECTION) || !EMU_HAS(addr))
		return DOCA_ERROR_INVALID_VALUE;
	if (connection->addr.magic == 0) {
		emu_misuse(__func__, "the connection is one by details, which has no address");
		return DOCA_ERROR_INVALID_VALUE;
	}
	*addr = (struct doca_rdma_addr *)&connection->addr;
	return DOCA_SUCCESS;
}

/* Reports misuse unless the callbacks for connections by address are set. */
static bool has_callbacks(const struct doca_rdma *rdma, bool listens, const char *function)
{
	if (rdma->established != NULL && (!listens || rdma->request != NULL))
		return true;
	emu_misuse(function, "doca_rdma_set_connection_state_callbacks has not been called%s",
		   rdma->established != NULL ? " with a callback for requests" : "");
	return false;
}

doca_error_t emu_doca_rdma_start_listen_to_port(struct doca_rdma *rdma, uint16_t port)
{
	doca_error_t result = enter(rdma, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (!has_callbacks(rdma, true, __func__))
		return leave(rdma, DOCA_ERROR_BAD_STATE);
	if (port == 0) {
		emu_misuse(__func__, "port 0 is none");
		return leave(rdma, DOCA_ERROR_INVALID_VALUE);
	}
	return leave(rdma, (doca_error_t)emuRdmaListen(rdma->ctx.core, port));
}

doca_error_t emu_doca_rdma_stop_listen_to_port(struct doca_rdma *rdma, uint16_t port)
{
	doca_error_t result = enter(rdma, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	return leave(rdma, (doca_error_t)emuRdmaStopListening(rdma->ctx.core, port));
}

doca_error_t emu_doca_rdma_connect_to_addr(struct doca_rdma *rdma, struct doca_rdma_addr *addr,
					   union doca_data connection_user_data)
{
	doca_error_t result;

	if (!EMU_IS(addr, EMU_RDMA_ADDR))
		return DOCA_ERROR_INVALID_VALUE;
	result = enter(rdma, __func__);
	if (result != DOCA_SUCCESS)
		return result;
	if (!has_callbacks(rdma, false, __func__))
		return leave(rdma, DOCA_ERROR_BAD_STATE);
	return leave(rdma, (doca_error_t)emuRdmaConnectTo(rdma->ctx.core, addr,
							  connection_user_data.u64));
}

/* Enters the engine of a connection's context, if it has been requested. */
static doca_error_t enter_requested(struct doca_rdma_connection *connection, const char *function)
{
	doca_error_t result;

	if (!emu_is(connection, EMU_RDMA_CONNECTION, function))
		return DOCA_ERROR_INVALID_VALUE;
	result = enter(connection->rdma, function);
	if (result != DOCA_SUCCESS || connection->state == EMU_RDMA_REQUESTED)
		return result;
	emu_misuse(function, "no request of the connection is waiting");
	return leave(connection->rdma, DOCA_ERROR_BAD_STATE);
}

doca_error_t emu_doca_rdma_connection_accept(struct doca_rdma_connection *connection,
					     void *private_data, uint8_t private_data_len)
{
	doca_error_t result = enter_requested(connection, __func__);

	if (result != DOCA_SUCCESS)
		return result;
	if (private_data == NULL && private_data_len > 0) {
		emu_misuse(__func__, "private_data is NULL");
		return leave(connection->rdma, DOCA_ERROR_INVALID_VALUE);
	}
	connection->state = EMU_RDMA_CONNECTING;
	emuRdmaAccept(connection->core, private_data, private_data_len);
	return leave(connection->rdma, DOCA_SUCCESS);
}

doca_error_t emu_doca_rdma_connection_reject(struct doca_rdma_connection *connection)
{
	doca_error_t result = enter_requested(connection, __func__);
	struct doca_rdma *rdma;

	if (result != DOCA_SUCCESS)
		return result;
	rdma = connection->rdma;
	emuRdmaReject(connection->core);
	emu_rdma_connection_free(connection);
	return leave(rdma, DOCA_SUCCESS);
}

doca_error_t emu_doca_rdma_connection_disconnect(struct doca_rdma_connection *connection)
{
	doca_error_t result;

	if (!EMU_IS(connection, EMU_RDMA_CONNECTION))
		return DOCA_ERROR_INVALID_VALUE;
	result = enter(connection->rdma, __func__);
	if (result != DOCA_SUCCESS)
		return result;
	if (connection->state != EMU_RDMA_CONNECTING) {
		emu_misuse(__func__, "the connection is not connected");
		return leave(connection->rdma, DOCA_ERROR_BAD_STATE);
	}
	emuRdmaDisconnect(connection->core);
	return leave(connection->rdma, DOCA_SUCCESS);
}

doca_error_t emu_doca_rdma_connection_set_user_data(struct doca_rdma_connection *connection,
						    union doca_data user_data)
{
	if (!EMU_IS(connection, EMU_RDMA_CONNECTION))
		return DOCA_ERROR_INVALID_VALUE;
	connection->user_data = user_data;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_rdma_connection_get_user_data(const struct doca_rdma_connection *connection,
						    union doca_data *user_data)
{
	if (!EMU_IS(connection, EMU_RDMA_CONNECTION) || !EMU_HAS(user_data))
		return DOCA_ERROR_INVALID_VALUE;
	*user_data = connection->user_data;
	return DOCA_SUCCESS;
}

doca_error_t emu_doca_rdma_connection_get_id(const struct doca_rdma_connection *connection,
					     uint32_t *id)
{
	if (!EMU_IS(connection, EMU_RDMA_CONNECTION) || !EMU_HAS(id))
		return DOCA_ERROR_INVALID_VALUE;
	*id = connection->id;
	return DOCA_SUCCESS;
}

/* By an rdma_cm_id, which the emulation cannot make an endpoint of TCP. */

static const char *const no_cm_id = "connections of rdma_cm_id need librdmacm and a device";

doca_error_t emu_doca_rdma_bridge_prepare_connection(struct doca_rdma *rdma,
						     struct rdma_cm_id *cm_id,
						     struct doca_rdma_connection **connection)
{
	if (EMU_CTX_OF(rdma, EMU_CTX_RDMA) == NULL || !EMU_HAS(cm_id) || !EMU_HAS(connection))
		return DOCA_ERROR_INVALID_VALUE;
	return emu_refuse(__func__, no_cm_id);
}

doca_error_t emu_doca_rdma_bridge_accept(struct doca_rdma *rdma, void *private_data,
					 uint8_t private_data_len,
					 struct doca_rdma_connection *connection)
{
	(void)private_data;
	(void)private_data_len;
	if (EMU_CTX_OF(rdma, EMU_CTX_RDMA) == NULL || !EMU_IS(connection, EMU_RDMA_CONNECTION))
		return DOCA_ERROR_INVALID_VALUE;
	return emu_refuse(__func__, no_cm_id);
}

doca_error_t emu_doca_rdma_bridge_established(struct doca_rdma *rdma,
					      struct doca_rdma_connection *connection)
{
	if (EMU_CTX_OF(rdma, EMU_CTX_RDMA) == NULL || !EMU_IS(connection, EMU_RDMA_CONNECTION))
		return DOCA_ERROR_INVALID_VALUE;
	return emu_refuse(__func__, no_cm_id);
}
