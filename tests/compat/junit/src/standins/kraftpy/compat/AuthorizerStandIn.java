package kraftpy.compat;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.DeleteAclsResult;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.internals.Plugin;
import org.apache.kafka.server.authorizer.AclCreateResult;
import org.apache.kafka.server.authorizer.AclDeleteResult;
import org.apache.kafka.server.authorizer.Authorizer;
import org.mockito.Mockito;
import scala.Option;

/** In the place of a node's authorizer: makes, tells and removes ACLs as a super user of a broker. */
final class AuthorizerStandIn {
    private AuthorizerStandIn() {
    }

    /** Return the authorizer of a node, if its settings name one; brokers are asked. */
    static Option<Plugin<Authorizer>> of(ServerProcess node, Supplier<List<ServerProcess>> brokers) {
        if (node.settings().getOrDefault("authorizer.class.name", "").isEmpty()) {
            return Option.empty();
        }
        Authorizer authorizer = Mockito.mock(Authorizer.class, call -> {
            try (Admin admin = FromOutside.admin(brokers.get().get(0))) {
                return switch (call.getMethod().getName()) {
                    case "createAcls" -> created(admin, call.getArgument(1));
                    case "deleteAcls" -> deleted(admin, call.getArgument(1));
                    case "acls" -> admin.describeAcls(call.getArgument(0)).values().get();
                    case "aclCount" -> admin.describeAcls(AclBindingFilter.ANY).values().get().size();
                    default -> StandIns.otherwise(call, "authorizer of node " + node.id());
                };
            }
        });
        return Option.apply(Plugin.wrapInstance(authorizer, null, "authorizer.class.name"));
    }

    private static List<CompletionStage<AclCreateResult>> created(Admin admin, List<AclBinding> bindings)
        throws InterruptedException {
        List<CompletionStage<AclCreateResult>> results = new ArrayList<>();
        for (KafkaFuture<Void> each : admin.createAcls(bindings).values().values()) {
            ApiException error = errorOf(each);
            results.add(CompletableFuture.completedFuture(
                error == null ? AclCreateResult.SUCCESS : new AclCreateResult(error)));
        }
        return results;
    }

    private static List<CompletionStage<AclDeleteResult>> deleted(Admin admin, List<AclBindingFilter> filters)
        throws InterruptedException {
        List<CompletionStage<AclDeleteResult>> results = new ArrayList<>();
        for (KafkaFuture<DeleteAclsResult.FilterResults> each : admin.deleteAcls(filters).values().values()) {
            ApiException error = errorOf(each);
            results.add(CompletableFuture.completedFuture(
                error == null ? new AclDeleteResult(deleted(each)) : new AclDeleteResult(error)));
        }
        return results;
    }

    private static Collection<AclDeleteResult.AclBindingDeleteResult> deleted(
        KafkaFuture<DeleteAclsResult.FilterResults> done) throws InterruptedException {
        try {
            return done.get().values().stream()
                .map(each -> new AclDeleteResult.AclBindingDeleteResult(each.binding())).collect(Collectors.toList());
        } catch (ExecutionException error) {
            throw new IllegalStateException(error);
        }
    }

    private static ApiException errorOf(KafkaFuture<?> future) throws InterruptedException {
        try {
            future.get();
            return null;
        } catch (ExecutionException error) {
            return (ApiException) error.getCause();
        }
    }
}
